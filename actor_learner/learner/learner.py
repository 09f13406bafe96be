"""The learner of any algorithm: `Learner(...)` is a `ReplayLearner` where rows are drawn from a replay buffer."""

from __future__ import annotations

from actor_learner.learner.base import Learner as Learner
from actor_learner.learner.replay import ReplayLearner as ReplayLearner

Learner.of_replay = ReplayLearner
