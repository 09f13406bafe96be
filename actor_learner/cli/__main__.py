"""`python -m actor_learner.cli`."""

from actor_learner.cli import run

run()
