"""EnvPool's environments in C++, one pool for each actor: `envpool:CartPole-v1`."""

from __future__ import annotations

import importlib
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from actor_learner.environments.atari import LifeLoss, split_life_options
from actor_learner.environments.autoreset import MAX_SEED, AnyVectorEnv, declare
from actor_learner.environments.errors import EnvError
from actor_learner.environments.lookup import closest

PREFIX = "envpool:"
_INSTALL = 'pip install "envpool>=1.2" (wheels for Python 3.11 to 3.14 on Linux, and on macOS with Apple silicon)'
_RESERVED_OPTIONS = ("batch_size", "env_type")


@dataclass(frozen=True)
class EnvPoolSource:
    """Builds the pool of an id, in any process."""

    task: str

    def __call__(self, num_envs: int, seed: int | None = None, **env_kwargs: Any) -> AnyVectorEnv:
        """Build a pool of `num_envs` environments on one thread; `env_kwargs` are EnvPool's options of the id.

        As for ALE, `episodic_life=True` makes a lost life terminal for learning while the game goes on.
        """
        if reserved := [name for name in env_kwargs if name in _RESERVED_OPTIONS]:
            raise EnvError(f"The actors set EnvPool's `{reserved[0]}`. Received: env_kwargs={env_kwargs}")
        options, ends_at_lost_life = split_life_options(env_kwargs)
        env = EnvPoolVectorEnv(self.task, num_envs, seed, options)
        return LifeLoss(env) if ends_at_lost_life else env


class EnvPoolVectorEnv(AnyVectorEnv):
    """A pool with the interface of a Gymnasium VectorEnv.

    EnvPool resets in the step after an end (NEXT_STEP). It takes a seed only when built, so a reset with another seed,
    or with the same one again, builds a new pool.
    """

    def __init__(self, task: str, num_envs: int, seed: int | None, options: dict[str, Any]) -> None:
        self._task, self._options = task, {"num_threads": 1, **options}
        self.num_envs = num_envs
        self._seed = int(np.random.default_rng().integers(MAX_SEED) if seed is None else seed) % (MAX_SEED - num_envs)
        self._stepped = False
        self._pool = self._build()
        if self._pool.config.get("max_num_players", 1) > 1:
            raise EnvError(f"`{PREFIX}{task}` is for several players, which is not supported. Received: env={task!r}")
        declare(self, num_envs, AutoresetMode.NEXT_STEP, self._pool.observation_space, self._pool.action_space)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, seeded with consecutive numbers from `seed`."""
        if seed is not None:
            seed = int(seed) % (MAX_SEED - self.num_envs)
            if self._stepped or seed != self._seed:
                self._seed = seed
                self._pool = self._build()
        self._stepped = True
        return self._pool.reset()  # type: ignore[no-any-return]

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        return self._pool.step(actions)  # type: ignore[no-any-return]

    def close_extras(self, **kwargs: Any) -> None:
        """Drop the last reference to the pool, which ends its threads."""
        self._pool = None

    def _build(self) -> Any:
        envpool = importlib.import_module("envpool")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the precision of bounds, which only EnvPool can change
            sizes = {"num_envs": self.num_envs, "batch_size": self.num_envs}
            pool = envpool.make(self._task, env_type="gymnasium", seed=self._seed, **sizes, **self._options)
            _ = pool.observation_space, pool.action_space  # built, with warnings, on first use
        return pool


def find_envpool(env: str) -> EnvPoolSource:
    """Return the source of `envpool:Id`. Raises EnvError for an unknown id, or if EnvPool can't be imported."""
    task = env.removeprefix(PREFIX)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            known = importlib.import_module("envpool").list_all_envs()
    except ImportError as error:
        reason = " ".join(str(error).split())
        raise EnvError(f"`{env}` needs the package `envpool` ({reason}): {_INSTALL}. Received: env={env!r}") from error
    if task not in known:
        near = closest(task, known)
        hint = f"did you mean `{PREFIX}{near}`?" if near else "`envpool.list_all_envs()` lists the ids."
        raise EnvError(f"EnvPool has no `{task}`; {hint} Received: env={env!r}")
    return EnvPoolSource(task)
