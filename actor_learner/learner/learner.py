"""The learner of any algorithm: `Learner` makes the kind that the algorithm needs."""

from __future__ import annotations

from actor_learner.learner.base import Learner as Learner
from actor_learner.learner.replay import ReplayLearner as ReplayLearner
