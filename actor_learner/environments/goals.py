"""The function by which a goal environment computes rewards."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from gymnasium.envs.registration import EnvSpec

from actor_learner.environments.errors import EnvError, calling
from actor_learner.environments.factory import EnvFactory

_GIVE = "give the function (achieved goals, desired goals, infos) -> rewards, which hindsight needs"


@contextlib.contextmanager
def goal_environment(factory: EnvFactory) -> Iterator[tuple[Any, Callable[..., Any]]]:
    """Build a single environment; yield it with its `compute_reward`, and close it afterwards.

    Raises EnvError if there is no single environment, if it can't be built, or has no such method.
    """
    if factory.native and not (isinstance(factory.source, EnvSpec) and factory.source.entry_point is not None):
        text = f"`{factory.name}` builds only whole vector environments"
        raise EnvError(f"`compute_reward`: {text}; {_GIVE}. Received: compute_reward=None")
    with calling(f"env `{factory.name}`", "can't be built:"):
        env = replace(factory, native=False).make_one()
    try:
        if not callable(function := getattr(env.unwrapped, "compute_reward", None)):
            text = f"`{factory.name}` has no method of this name"
            raise EnvError(f"`compute_reward`: {text}; {_GIVE}. Received: compute_reward=None")
        with calling(f"env `{factory.name}`", "can't be reset:"):
            env.reset()  # which some functions rely on
        yield env, function
    finally:
        env.close()
