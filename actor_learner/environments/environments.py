"""One actor's vector environment, with the same interface in every autoreset mode."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import vector as vector_wrappers

from actor_learner.environments import autoreset
from actor_learner.environments.action_masks import ActionMasks, find_method, warn_of_unused_masks
from actor_learner.environments.agents import ABSENT, AgentsVectorEnv, TurnGames
from actor_learner.environments.atari import LIFE_LOST
from actor_learner.environments.autoreset import AnyVectorEnv
from actor_learner.environments.buffers import Observations, first_fault, require_shape
from actor_learner.environments.calls import Call, CallError, methods, perform
from actor_learner.environments.episodes import Episodes, EpisodeStatistics
from actor_learner.environments.errors import ApiError, EnvError, calling, closing, describe_error, short
from actor_learner.environments.seeding import seed_spaces
from actor_learner.environments.self_play import SelfPlayVectorEnv
from actor_learner.spaces.spaces import Spaces
from actor_learner.spaces.structure import MASK_KEY
from actor_learner.system.types import Array, Leaves

# Gymnasium's vector RecordEpisodeStatistics zeroes every row at a masked reset, and before 1.4 it omits the first step
# of each episode with SAME_STEP. In other modes than these, `Environments` ignores its episodes.
_RECORDING_MODES = {AutoresetMode.NEXT_STEP}
if tuple(int(number) for number in gym.__version__.split(".")[:2]) >= (1, 4):
    _RECORDING_MODES.add(AutoresetMode.SAME_STEP)


ENDLESS_STEPS = 100_000
GAME_LIMIT = "let the game end by itself, as by its `max_cycles` or truncations"
"""Env steps after which an episode that hasn't ended causes a warning."""
_GAMES = (AgentsVectorEnv, TurnGames, SelfPlayVectorEnv)
_SEARCHED_EPISODES = 20  # after which `info_keys` that none of them had cause a warning


class Transition(NamedTuple):
    """One step of b environments. Arrays are valid until the next `step` or `reset`."""

    observation: Leaves  # the observation to act on next, leaves `[b, ...]` in the trajectory's dtypes
    reward: Array  # [b] float32, 0 where the row only resets
    terminated: Array  # [b] bool
    truncated: Array  # [b] bool, never True where `terminated` is
    valid: Array  # [b] bool, False where the row only resets
    # The last observations of the episodes cut off in this step, leaves `[b, ...]`, with anything finite in other rows;
    # with `terminal_observations` also of those that terminated.
    final_observation: Leaves | None
    episodes: Episodes | None  # the episodes that ended in this step
    started: Array | None  # [b] bool, True where the observation is an episode's first; None: nowhere


class Environments:
    """A vector environment behind one interface for Gymnasium's three autoreset modes.

    DISABLED: a masked reset follows an end at once. NEXT_STEP: the step after an end only resets, `valid=False`.
    SAME_STEP: the environment resets within the step and gives the last observation in `infos["final_obs"]`.

    A terminated row that `infos["life_lost"]` (bool [b]) marks is terminal for learning, but the game goes on without a
    reset, and its episode in the statistics is the whole game. Rows that `infos["absent"]` (bool [b]) marks have no
    part in the next step, where they are `valid=False`.

    With DISABLED, an exception of the reset comes with the next step, so that the transition before it isn't lost.

    Args:
        vector_env: A vector environment from `EnvFactory.make`.
        autoreset_mode: `"next_step"`, `"same_step"` or `"disabled"`, for a VectorEnv that declares none.
        info_keys: Numeric entries of the last step's `info` to report with each episode.
        terminal_observations: Whether last observations of terminated episodes are given, too.
        actor, name: The actor's number and the environment's name (by default its id), for messages.
        share: As of `Spaces`.

    Raises EnvError for unsupported spaces, or no autoreset mode.
    """

    def __init__(
        self,
        vector_env: AnyVectorEnv,
        *,
        autoreset_mode: str | AutoresetMode | None = None,
        info_keys: Sequence[str] = ("is_success",),
        terminal_observations: bool = False,
        actor: int | None = None,
        name: str | None = None,
        share: int = 1,
    ) -> None:
        self.vector_env = vector_env
        self.num_envs = vector_env.num_envs
        self.terminal_observations = terminal_observations
        self.observation_space = vector_env.single_observation_space
        self.action_space = vector_env.single_action_space
        # With masks in `infos`, `masked` becomes True at the first reset.
        self.spaces = Spaces(self.observation_space, self.action_space, share=share)
        self.name = name or _name(vector_env)
        self._actor = actor
        try:
            structure = self.spaces.observation
            self._masks = ActionMasks(self.spaces, self.num_envs, self._describe_row, find_method(vector_env))
        except ValueError as error:
            raise EnvError(f"{self._where()}: {error}") from error
        # The policy reads the previous observation while the current one is written.
        buffers = [Observations(structure, self.num_envs) for _ in range(4)]
        self._current, self._previous, self._final, self._scratch = buffers
        self._reward = np.zeros(self.num_envs, np.float32)
        self._all_valid: Array = np.ones(self.num_envs, dtype=bool)
        self._all_valid.flags.writeable = False
        self._resetting: Array | None = None
        self._absent: Array | None = None
        self._reset_error: Exception | None = None
        self._check_bounds()
        self.autoreset_mode = self._mode(autoreset_mode)
        self._mode_checked = False
        self._step_checked = self._reset_checked = False
        self._step = 0
        recorded = _has(vector_env, vector_wrappers.RecordEpisodeStatistics)
        self._statistics = EpisodeStatistics(self.num_envs, info_keys, _recorders(vector_env), bounded=recorded)
        self._uses_recorded_episodes = self.autoreset_mode in _RECORDING_MODES or not recorded
        self._endless_at = math.inf if actor else ENDLESS_STEPS
        if not actor:
            self._warn_of_normalization()

    @property
    def observation(self) -> Leaves:
        """The leaves of the observation to act on next."""
        return self._current.leaves

    @property
    def action_mask(self) -> Array | None:
        """The mask of the actions that the current observation allows, bool [b, M], or None."""
        return self._masks.current

    @property
    def shown_mask(self) -> Array | None:
        """The same, but where a row shows the last observation of an episode that was cut off: see `final_mask`."""
        return self._masks.shown

    @property
    def final_mask(self) -> Array:
        """The mask of the last observations of the episodes cut off in this step; nothing where it isn't known."""
        return self._masks.final

    def reset(self, seed: int | None = None) -> Leaves:
        """Reset every environment, seeded with consecutive numbers from `seed`; return the first observation's leaves.

        Their spaces are seeded, too, with other numbers.

        Raises EnvError if `reset` raised, or its observation or action mask breaks its space.
        """
        if seed is not None:
            seed = int(seed) % (autoreset.MAX_SEED - self.num_envs)
            if not isinstance(self.vector_env, _GAMES):  # which seed their own
                seed_spaces(self.vector_env, seed)
        infos = self._vector_reset(self._current, seed=seed)
        self._resetting = self._reset_error = None
        self._absent = _absent(infos)
        self._statistics.start(slice(None), self._step)
        self._check(self._current)
        self._masks.reset(infos, self._current.leaves, None if self._absent is None else ~self._absent)
        if not self._masks.in_use and not self._actor:  # None: in this process; one actor speaks for all
            warn_of_unused_masks(self.vector_env)
        if self._masks.in_use and not self.spaces.masked:
            self.spaces = replace(self.spaces, masked=True)
        return self._current.leaves

    def step(self, env_action: Any) -> Transition:
        """Step every environment with the actions of `Policy.to_env`.

        Raises EnvError for NaN or infinity in an observation or reward, an observation or action mask that breaks its
        space, SystemExit, or a VectorEnv that breaks its autoreset mode; else what the environments raise.
        """
        if self._reset_error is not None:
            raise self._reset_error
        try:
            raw, raw_reward, terminated, truncated, infos = self.vector_env.step(env_action)
        except EnvError as error:
            raise type(error)(f"{error} ({self._where()})") from error
        except SystemExit as error:
            raise EnvError(f"`step` of {self._where()} raised {describe_error(error)}") from error
        if not self._step_checked:
            self._check_first_step(raw, infos, raw_reward, terminated, truncated)
        self._step += 1
        if self._step >= self._endless_at:
            self._warn_of_endless()
        if MASK_KEY in infos and not self._masks.in_use:
            self._masks.check_absent(infos)
        self._current, self._previous = self._previous, self._current
        current, reward = self._current, self._reward
        try:
            current.write(raw)
        except (ValueError, TypeError) as error:
            raise self._unwritable("step", raw, error) from error
        try:
            require_shape(raw_reward, reward.shape)
            np.copyto(reward, raw_reward, casting="unsafe")
        except (ValueError, TypeError) as error:
            expected = f"`step` of {self._where()} must return numbers as rewards"
            raise EnvError(f"{expected}. Received: {short(raw_reward)}") from error
        if not current.surely_valid(reward):
            self._check(current, raw_reward)
        self._statistics.returns += reward
        terminated = np.asarray(terminated, dtype=bool)
        truncated = np.asarray(truncated, dtype=bool)
        none_ended = 1 not in terminated.tobytes() and 1 not in truncated.tobytes() and ABSENT not in infos
        if self._resetting is None and self._absent is None and none_ended:
            if self._masks.in_use:
                self._masks.read(infos, current.leaves)
            return Transition(current.leaves, reward, terminated, truncated, self._all_valid, None, None, None)
        return self._step_with_ends(terminated, truncated, infos)

    def call(self, call: Call) -> None:
        """Call a method of every environment. Raises EnvError if there is none, unless it is optional, or it raises."""
        try:
            perform(self.vector_env, call, self._where())
        except CallError as error:
            if not call.optional:
                raise
            if not self._actor:
                warnings.warn(f"A call of an earlier process is left out: {error}", UserWarning, stacklevel=3)

    def check_call(self, call: Call) -> None:
        """Raise CallError, an EnvError, if there is no such method or it takes other arguments."""
        methods(self.vector_env, call, self._where())

    def warn_of_missing_info(self, least: int = 1) -> None:
        """Warn, once, of `info_keys` that no episode had, if at least so many have ended."""
        missing, others, episodes = self._statistics.missing_info(least)
        if missing:
            warnings.warn(
                f"{self._where()}: the last `info` of none of {episodes} episodes has {', '.join(missing)} of "
                f"`info_keys`; its numbers are {', '.join(others) or 'none'}",
                stacklevel=3,
            )

    def close(self) -> None:
        """Close the environments. What that raises is logged."""
        with closing(self.vector_env, self._where()):
            pass
        if not self._actor:
            self.warn_of_missing_info()

    def _step_with_ends(self, terminated: Array, truncated: Array, infos: dict[str, Any]) -> Transition:
        leaves, reward = self._current.leaves, self._reward
        valid = self._all_valid if self._resetting is None else self._start_after_reset(terminated, truncated)
        was_absent, self._absent = self._absent, _absent(infos)
        if was_absent is not None:
            self._reward[was_absent] = 0.0
            self._statistics.start(was_absent, self._step)  # their next observation may start an episode
            valid = valid & ~was_absent
        terminated, cut_off = terminated & valid, truncated & valid
        truncated = cut_off & ~terminated
        ended = terminated | truncated
        if self._absent is not None and (leaving := self._absent & valid & ~ended).any():  # its return is unknown
            where = self._describe_row(int(np.flatnonzero(leaving)[0]))
            rule = "must be terminated or truncated in the step after which `infos` marks it as absent"
            raise EnvError(f"The episode of {where} {rule}. Received: neither")
        if LIFE_LOST in infos:  # a life may be lost in the step that a time limit cuts off
            ended = cut_off | (terminated & ~np.asarray(infos[LIFE_LOST], dtype=bool))
        self._resetting = None
        idle = np.zeros_like(ended) if self._absent is None else self._absent
        if self._masks.in_use:
            waits = idle if self.autoreset_mode is AutoresetMode.SAME_STEP else idle | ended
            self._masks.read(infos, leaves, ~waits if waits.any() else None)
        started = (~valid if self.autoreset_mode is AutoresetMode.NEXT_STEP else ended | ~valid) & ~idle
        final = None
        if ended.any():
            self._statistics.finish(ended, cut_off, self._step, self._last_infos(infos))
            final = self._end(ended, truncated, infos)
            if not self._actor:
                self.warn_of_missing_info(least=_SEARCHED_EPISODES)
        episodes = self._statistics.report(self._resetting)
        return Transition(leaves, reward, terminated, truncated, valid, final, episodes, started)

    def _end(self, ended: Array, truncated: Array, infos: dict[str, Any]) -> Leaves | None:
        """Start the next episodes by the mode's rules; return the last observations that are to be given, or None."""
        self._check_final_obs(infos)
        shown = ended if self.terminal_observations else truncated
        next_step = self.autoreset_mode is AutoresetMode.NEXT_STEP
        final = (self._current if next_step else self._final) if shown.any() else None
        if final is not None:
            if not next_step:
                final.take(self._current)
            if self.autoreset_mode is AutoresetMode.SAME_STEP:
                self._take_final_obs(final, shown, infos["final_obs"])
            if self._masks.in_use:
                stays = next_step if self._absent is None else next_step | self._absent
                self._masks.end(infos, final.leaves, truncated, truncated & stays)
        if next_step:
            self._resetting = ended
            return None if final is None else final.leaves
        self._statistics.start(ended, self._step)
        if self.autoreset_mode is AutoresetMode.DISABLED:
            self._reset_rows(ended)
        return None if final is None else final.leaves

    def _take_final_obs(self, final: Observations, shown: Array, given: Any) -> None:
        """Copy the last observations. Gymnasium gives an array of objects, some vector environments a batch."""
        batch = final.structure.flatten(given) if isinstance(given, (dict, tuple)) else None
        for row in np.flatnonzero(shown).tolist():
            own = given[row] if batch is None else final.structure.unflatten([leaf[row] for leaf in batch])
            final.write_row(row, own)
        self._check(final)

    def _reset_rows(self, ended: Array) -> None:
        fresh = self._scratch
        try:
            infos = self._vector_reset(fresh, options={"reset_mask": ended.copy()})
        except Exception as error:
            self._reset_error = error
            return
        if not self._mode_checked and not ended.all():
            self._mode_checked = True
            if not fresh.equals(self._current, ~ended):
                raise self._mode_error("ignored `options['reset_mask']` and reset other environments too")
        self._current.take(fresh, ended)
        self._check(self._current)
        if self._masks.in_use:
            self._masks.read(infos, self._current.leaves, ended, keep=True)
        else:
            self._masks.check_absent(infos)

    def _start_after_reset(self, terminated: Array, truncated: Array) -> Array:
        """NEXT_STEP: start the episodes of the rows that this step only reset. Returns `valid`."""
        resetting = self._resetting
        assert resetting is not None
        if not self._mode_checked:
            self._mode_checked = True
            if (self._reward[resetting] != 0).any() or (terminated | truncated)[resetting].any():
                raise self._mode_error("gave a reward or ended an episode in the step after an end, which only resets")
        self._reward[resetting] = 0.0
        self._statistics.start(resetting, self._step)
        return ~resetting

    def _vector_reset(self, into: Observations, **kwargs: Any) -> dict[str, Any]:
        """Reset the environments, write the observation, and return the infos."""
        with self._calling("reset"):
            observation, infos = self.vector_env.reset(**kwargs)
        if not self._reset_checked:
            self._check_batch("reset", observation, infos)
            self._reset_checked = True
        try:
            into.write(observation)
        except (ValueError, TypeError) as error:
            raise self._unwritable("reset", observation, error) from error
        return infos

    def _last_infos(self, infos: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the vector infos to search for the ended episodes' last info; SAME_STEP has them in `final_info`."""
        if not self._uses_recorded_episodes:
            infos = {key: value for key, value in infos.items() if key != "episode"}
        if self.autoreset_mode is not AutoresetMode.SAME_STEP:
            return [infos]
        final = infos.get("final_info")
        if final is not None and not isinstance(final, dict) and not self._actor:
            warnings.warn(
                f"{self._where()}: `infos['final_info']` must be a dict of arrays, as in Gymnasium 1.0, and isn't "
                f"read. Received: {type(final).__name__}",
                stacklevel=5,
            )
        recorded: dict[str, Any] = {key: infos[key] for key in ("episode", "_episode") if key in infos}
        return [final, recorded] if isinstance(final, dict) else [recorded]

    def _mode(self, given: str | AutoresetMode | None) -> AutoresetMode:
        declared = autoreset.declared_autoreset_mode(self.vector_env)
        mode = declared if given is None else autoreset.parse_autoreset_mode(given)
        if mode is None:
            raise EnvError(
                f"{self._where()} declares no autoreset mode: set `metadata['autoreset_mode']` or pass "
                "`autoreset_mode=` 'next_step', 'same_step' or 'disabled'. "
                f"Received: metadata={self.vector_env.metadata}"
            )
        if mode is not declared and isinstance(self.vector_env.unwrapped, gym.vector.SyncVectorEnv):
            name = declared and declared.name
            raise EnvError(f"{self._where()} has the autoreset mode {name}. Received: autoreset_mode={given!r}")
        if declared not in (None, mode) and not self._actor:
            warnings.warn(
                f"{self._where()} declares the autoreset mode {declared.name}: with another one, the last observations "
                f"of its episodes are wrong, unless the declaration is. Received: autoreset_mode={given!r}",
                stacklevel=4,
            )
        return mode

    def _check_bounds(self) -> None:
        """Raise EnvError if bounds differ: one environment's scale, clip and check the values of all."""
        for root, single in (("observation", self.observation_space), ("action", self.action_space)):
            batched = getattr(self.vector_env, f"{root}_space", None)
            if batched is None:
                continue
            if (difference := autoreset.differing_environments(batched, single, self.num_envs)) is not None:
                leaf, number = difference
                raise EnvError(
                    f"The environments of {self._where()} must have the same bounds, but `{root}{leaf}` of "
                    f"environment {number} has other bounds than that of environment 0; rescale them in a wrapper. "
                    f"Received: {' '.join(str(batched).split())}"
                )

    def _check_batch(self, source: str, raw: Any, infos: Any) -> None:
        if not isinstance(infos, Mapping):
            raise ApiError(f"`{source}` of {self._where()} must return a dict as infos. Received: infos={short(infos)}")
        try:
            self._current.check_shapes(raw)
        except ValueError as error:
            raise ApiError(f"`{source}` of {self._where()} must return a batch of observations: {error}") from error

    def _unwritable(self, source: str, raw: Any, error: Exception) -> EnvError:
        try:
            self._check_batch(source, raw, {})  # names the leaf
        except ApiError as named:
            return EnvError(str(named))
        return EnvError(f"`{source}` of {self._where()} gave unusable values: {error}. Received: {short(raw)}")

    def _check_first_step(self, raw: Any, infos: Any, *columns: Any) -> None:
        self._check_batch("step", raw, infos)
        for name, column in zip(("rewards", "terminations", "truncations"), columns, strict=True):
            if (shape := np.shape(column)) != (self.num_envs,):
                expected = f"{name} of shape ({self.num_envs},)"
                raise ApiError(f"`step` of {self._where()} must return {expected}. Received: shape={shape}")
        self._step_checked = True

    def _check(self, observations: Observations, raw_reward: Any = None) -> None:
        """Raise EnvError for the first invalid number of the observations and the reward."""
        if raw_reward is None and observations.surely_valid(self._reward):
            return
        fault = observations.fault()
        if fault is None and raw_reward is not None:  # which may hold None, where `_reward` has NaN
            fault = first_fault("reward", np.asarray(raw_reward), ~np.isfinite(self._reward), "finite")
        if fault is not None:
            where = self._describe_row(fault.row)
            raise EnvError(f"{fault.label} of {where} must be {fault.rule}. Received: {fault.value}")

    def _describe_row(self, row: int) -> str:
        length = self._step - int(self._statistics.first_step[row])
        return f"environment {row} of {self._where()}, at step {length} of its episode (env step {self._step})"

    def _check_final_obs(self, infos: dict[str, Any]) -> None:
        given, same_step = "final_obs" in infos, self.autoreset_mode is AutoresetMode.SAME_STEP
        if same_step and not given:
            named = ", but `infos['final_observation']`, its name before Gymnasium 1.0"
            older = named if "final_observation" in infos else ""
            raise EnvError(
                f"{self._where()} gave no `infos['final_obs']` at the end of an episode{older}: put the last "
                "observations there, or declare another `metadata['autoreset_mode']` if it isn't reset in that step. "
                f"Received: autoreset_mode={self.autoreset_mode.name}"
            )
        if given and not same_step and not self._mode_checked:
            raise self._mode_error("gave `infos['final_obs']` at the end of an episode, as SAME_STEP does")

    def _mode_error(self, what: str) -> EnvError:
        return EnvError(
            f"{self._where()} {what}; correct its `metadata['autoreset_mode']` or pass `autoreset_mode=`. "
            f"Received: autoreset_mode={self.autoreset_mode.name}"
        )

    def _calling(self, method: str) -> contextlib.AbstractContextManager[None]:
        return calling(f"`{method}` of {self._where()}", where=self._where())

    def _where(self) -> str:
        return f"env `{self.name}`" + ("" if self._actor is None else f" in actor {self._actor}")

    def _warn_of_endless(self) -> None:
        """Warn, once, of an episode that doesn't end: it has no return, and an evaluation waits for it."""
        oldest = int(self._statistics.first_step.min())
        self._endless_at = oldest + ENDLESS_STEPS
        if self._step >= self._endless_at:
            self._endless_at = math.inf
            also = ", or evaluate with `max_episode_steps`" if self._actor is None else ""
            is_game = isinstance(self.vector_env, _GAMES)
            warnings.warn(
                f"{self._where()}: an episode hasn't ended after {ENDLESS_STEPS:,} steps, and has no return before: "
                + (GAME_LIMIT if is_game else f"add a TimeLimit{also}"),
                stacklevel=3,
            )

    def _warn_of_normalization(self) -> None:
        remedies = {
            "NormalizeObservation": "use `normalize_observation=True` instead",
            "NormalizeReward": "use `normalize_reward=True` of on-policy algorithms or a fixed scale (TransformReward)",
        }
        for name, remedy in remedies.items():
            if _has(self.vector_env, getattr(gym.wrappers, name), getattr(vector_wrappers, name)):
                warnings.warn(
                    f"{self._where()} has Gymnasium's wrapper {name}, whose statistics differ between environments "
                    f"and are in no checkpoint; {remedy}.",
                    stacklevel=3,
                )


def _absent(infos: Mapping[str, Any]) -> Array | None:
    """Return the rows without a part in the next step, bool [b], or None.

    With Gymnasium's flags beside it, it is an entry of an environment's own info.
    """
    return np.array(infos[ABSENT], dtype=bool) if ABSENT in infos and f"_{ABSENT}" not in infos else None


def _has(vector_env: AnyVectorEnv, *wrappers: type) -> bool:
    return any(isinstance(layer, wrappers) for layer in autoreset.layers(vector_env))


def _recorders(vector_env: AnyVectorEnv) -> dict[int, Any]:
    """Return the outermost `RecordEpisodeStatistics` of each environment that has one."""
    base = vector_env.unwrapped
    recorders: dict[int, Any] = {}
    for row, env in enumerate(base.envs if isinstance(base, gym.vector.SyncVectorEnv) else []):
        for layer in autoreset.layers(env):
            if isinstance(layer, gym.wrappers.RecordEpisodeStatistics):
                recorders.setdefault(row, layer)
    return recorders


def _name(vector_env: AnyVectorEnv) -> str:
    base: Any = vector_env.unwrapped
    if isinstance(base, gym.vector.SyncVectorEnv):
        base = base.envs[0].unwrapped
    return type(base).__name__ if base.spec is None else str(base.spec.id)
