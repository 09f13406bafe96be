"""One actor's vector environment, stepped the same way whatever its autoreset mode."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Discrete
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import vector as vector_wrappers

from actor_learner import spaces
from actor_learner.env_factory import EnvFactory, resolve_env
from actor_learner.env_spec import EnvError, describe_error
from actor_learner.episodes import Episodes, EpisodeStatistics
from actor_learner.vector_env import AnyVectorEnv, declared_autoreset_mode, layers, parse_autoreset_mode

__all__ = ["EnvError", "EnvFactory", "Environments", "Episodes", "Transition", "resolve_env"]

Array = np.ndarray[Any, Any]
_Buffer = tuple[Array, Array | None]  # [b, ...], and the same memory flat where it holds floats
# Gymnasium's vector RecordEpisodeStatistics zeroes every row at a masked reset, and before 1.4 it left out the first
# step of each episode with SAME_STEP: its episodes are taken in these modes only, else our own.
_RECORDED_RIGHT = {AutoresetMode.NEXT_STEP}
if tuple(int(number) for number in gym.__version__.split(".")[:2]) >= (1, 4):
    _RECORDED_RIGHT.add(AutoresetMode.SAME_STEP)
_SEEDS = 2**31  # the most that every simulator in C takes


class Transition(NamedTuple):
    """One step of b environments. Arrays are valid until the next `step` or `reset`.

    Attributes:
        observation: [b, ...] to act on next, in the trajectory's dtype.
        reward: [b] float32, 0 where the row only resets.
        terminated: [b] bool.
        truncated: [b] bool, never set together with `terminated`.
        valid: [b] bool, False where the row only resets.
        final_observation: [b, ...] last observations of the episodes cut off in this step (elsewhere anything finite);
            None where no row is truncated.
        episodes: The episodes that ended in this step, or None.
    """

    observation: Array
    reward: Array
    terminated: Array
    truncated: Array
    valid: Array
    final_observation: Array | None
    episodes: Episodes | None


class Environments:
    """A vector environment behind one interface for Gymnasium's three autoreset modes.

    DISABLED: ended rows are reset at once with a mask. NEXT_STEP: the step after an end only resets, `valid=False`.
    SAME_STEP: the environment resets within the step and gives the last observation in `infos["final_obs"]`.
    """

    # Two of these, so that the observation acted on stays whole while the next one is written.
    _current: _Buffer
    _previous: _Buffer
    _final: _Buffer
    _scratch: Array
    _reward: Array
    _all_valid: Array
    _resetting: Array | None

    def __init__(
        self,
        vector_env: AnyVectorEnv,
        *,
        autoreset_mode: str | AutoresetMode | None = None,
        info_keys: Sequence[str] = ("is_success",),
        actor: int | None = None,
        name: str | None = None,
    ) -> None:
        """Checks the spaces and reads the autoreset mode, once.

        Args:
            vector_env: What `EnvFactory.make` built.
            autoreset_mode: `"next_step"`, `"same_step"` or `"disabled"`, for a VectorEnv that declares none.
            info_keys: Numeric entries of the last step's `info` to report with each episode.
            actor: Number of the actor, for messages.
            name: Name of the environment, for messages; by default its id.

        Raises:
            EnvError: unsupported spaces, or no autoreset mode.
        """
        self.vector_env = vector_env
        self.num_envs = vector_env.num_envs
        self.observation_space = vector_env.single_observation_space
        self.action_space = vector_env.single_action_space
        self.name = name or _name(vector_env)
        self._actor = actor
        self._check_spaces()
        self.autoreset_mode = self._mode(autoreset_mode)
        self._mode_checked = False
        self._step_checked = self._reset_checked = False
        self._step = 0
        self._statistics = EpisodeStatistics(
            self.num_envs, info_keys, only_recorded=_has(vector_env, gym.wrappers.RecordEpisodeStatistics)
        )
        self._trust_recorded = self.autoreset_mode in _RECORDED_RIGHT or not _has(
            vector_env, vector_wrappers.RecordEpisodeStatistics
        )
        self._allocate()
        if not actor:
            self._warn_of_normalization()

    def reset(self, seed: int | None = None) -> Array:
        """Resets every environment, seeded with consecutive numbers from `seed`: the first observations [b, ...].

        Raises:
            EnvError: `reset` raised (with the last frame in the user's file), or its observation breaks its space.
        """
        if seed is not None:
            seed = int(seed) % (_SEEDS - self.num_envs)
        self._write(self._current[0], self._vector_reset(seed=seed))
        self._resetting = None
        self._statistics.start(slice(None), self._step)
        self._check_finite(self._current)
        return self._current[0]

    def step(self, env_action: Any) -> Transition:
        """Steps every environment with what `Policy.to_env` gave.

        Raises:
            EnvError: NaN or infinity in an observation or reward, an observation that breaks its space, or a VectorEnv
                that doesn't behave as its autoreset mode says.
        """
        raw, raw_reward, terminated, truncated, infos = self.vector_env.step(env_action)
        if not self._step_checked:
            self._check_first_step(raw, raw_reward, terminated, truncated)
        self._step += 1
        self._current, self._previous = self._previous, self._current
        observation, flat = self._current
        reward = self._reward
        self._write(observation, raw)
        np.copyto(reward, raw_reward, casting="unsafe")
        if not _surely_finite(reward, flat):
            self._check_finite(self._current, reward)
        self._statistics.returns += reward
        terminated = np.asarray(terminated, dtype=bool)
        truncated = np.asarray(truncated, dtype=bool)
        if self._resetting is None and 1 not in terminated.tobytes() and 1 not in truncated.tobytes():
            return Transition(observation, reward, terminated, truncated, self._all_valid, None, None)
        return self._step_with_ends(terminated, truncated, infos)

    def close(self) -> None:
        """Closes the environments."""
        self.vector_env.close()

    def _step_with_ends(self, terminated: Array, truncated: Array, infos: dict[str, Any]) -> Transition:
        observation, reward = self._current[0], self._reward
        valid = self._all_valid if self._resetting is None else self._start_after_reset(terminated, truncated)
        terminated = terminated & valid
        truncated = truncated & valid & ~terminated
        ended = terminated | truncated
        self._resetting = None
        if not ended.any():
            return Transition(observation, reward, terminated, truncated, valid, None, None)
        episodes = self._statistics.finish(ended, self._step, self._last_infos(infos))
        final = self._end(ended, infos)
        return Transition(
            observation, reward, terminated, truncated, valid, final if truncated.any() else None, episodes
        )

    def _end(self, ended: Array, infos: dict[str, Any]) -> Array:
        """Starts the next episodes as the mode has it; returns [b, ...] with the last observations of those ended."""
        observation = self._current[0]
        self._check_final_obs(infos)
        if self.autoreset_mode is AutoresetMode.NEXT_STEP:
            self._resetting = ended
            return observation
        final = self._final[0]
        np.copyto(final, observation)
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            for row in np.flatnonzero(ended):
                self._write(final[row : row + 1], np.asarray(infos["final_obs"][row])[None])
            self._check_fresh(self._final)
        else:
            self._reset_rows(ended, observation)
        self._statistics.start(ended, self._step)
        return final

    def _reset_rows(self, ended: Array, observation: Array) -> None:
        fresh = self._scratch
        self._write(fresh, self._vector_reset(options={"reset_mask": ended.copy()}))
        if not self._mode_checked and not ended.all():
            self._check_others_kept(fresh, observation, ended)
        observation[ended] = fresh[ended]
        self._check_fresh(self._current)

    def _start_after_reset(self, terminated: Array, truncated: Array) -> Array:
        """NEXT_STEP: the rows that ended in the last step were only reset in this one. Returns `valid`."""
        resetting = self._resetting
        assert resetting is not None
        if not self._mode_checked:
            self._mode_checked = True
            if (self._reward[resetting] != 0).any() or (terminated | truncated)[resetting].any():
                raise self._misbehaves("gave a reward or ended an episode in the step after an end, which only resets")
        self._reward[resetting] = 0.0
        self._statistics.start(resetting, self._step)
        return ~resetting

    def _vector_reset(self, **kwargs: Any) -> Any:
        try:
            observation, _ = self.vector_env.reset(**kwargs)
        except EnvError as error:
            raise EnvError(f"{error} ({self._where()})") from error
        except Exception as error:
            raise EnvError(f"`reset` of {self._where()} raised {describe_error(error)}") from error
        if not self._reset_checked:
            self._check_batch("reset", observation)
            self._reset_checked = True
        return observation

    def _last_infos(self, infos: dict[str, Any]) -> list[dict[str, Any]]:
        """Where the ended episodes' last info stands: beside the next episode's first one with SAME_STEP."""
        if not self._trust_recorded:
            infos = {key: value for key, value in infos.items() if key != "episode"}
        if self.autoreset_mode is not AutoresetMode.SAME_STEP:
            return [infos]
        final = infos.get("final_info")
        recorded: dict[str, Any] = {key: infos[key] for key in ("episode", "_episode") if key in infos}
        return [final, recorded] if isinstance(final, dict) else [recorded]

    def _allocate(self) -> None:
        shape, dtype = spaces.observation_shape_dtype(self.observation_space)
        floating = np.issubdtype(dtype, np.floating)

        def buffer() -> _Buffer:
            array = np.zeros((self.num_envs, *shape), dtype)
            return array, array.reshape(-1) if floating else None

        self._current, self._previous, self._final = buffer(), buffer(), buffer()
        self._scratch = np.zeros((self.num_envs, *shape), dtype)
        self._reward = np.zeros(self.num_envs, np.float32)
        self._all_valid = np.ones(self.num_envs, dtype=bool)
        self._all_valid.flags.writeable = False
        self._resetting = None
        self._start = int(self.observation_space.start) if isinstance(self.observation_space, Discrete) else 0

    def _write(self, out: Array, raw: Any) -> None:
        if self._start:
            raw = np.asarray(raw) - self._start
        np.copyto(out, raw, casting="unsafe")

    def _mode(self, given: str | AutoresetMode | None) -> AutoresetMode:
        declared = declared_autoreset_mode(self.vector_env)
        if given is not None:
            mode = parse_autoreset_mode(given)
            if isinstance(self.vector_env.unwrapped, gym.vector.SyncVectorEnv) and declared is not mode:
                raise EnvError(
                    f"{self._where()} runs in autoreset mode {declared and declared.name}. "
                    f"Received: autoreset_mode={given!r}"
                )
            return mode
        if declared is None:
            raise EnvError(
                f"{self._where()} names no autoreset mode: set `metadata['autoreset_mode']` or pass "
                "`autoreset_mode=` 'next_step', 'same_step' or 'disabled'. "
                f"Received: metadata={self.vector_env.metadata}"
            )
        return declared

    def _check_spaces(self) -> None:
        try:
            spaces.check_observation_space(self.observation_space)
            spaces.check_action_space(self.action_space)
        except ValueError as error:
            raise EnvError(f"{self._where()}: {error}") from error

    def _check_batch(self, source: str, raw: Any) -> None:
        expected = (self.num_envs, *spaces.observation_shape_dtype(self.observation_space)[0])
        if isinstance(raw, (dict, tuple)) or np.shape(raw) != expected:
            received = f"a {type(raw).__name__}" if isinstance(raw, (dict, tuple)) else f"shape={np.shape(raw)}"
            raise EnvError(
                f"`{source}` of {self._where()} must return observations of shape {expected}. Received: {received}"
            )

    def _check_first_step(self, raw: Any, *columns: Any) -> None:
        self._check_batch("step", raw)
        for name, column in zip(("rewards", "terminations", "truncations"), columns, strict=True):
            if np.shape(column) != (self.num_envs,):
                raise EnvError(
                    f"`step` of {self._where()} must return {name} of shape ({self.num_envs},). "
                    f"Received: shape={np.shape(column)}"
                )
        self._step_checked = True

    def _check_fresh(self, observation: _Buffer) -> None:
        if not _surely_finite(self._reward, observation[1]):
            self._check_finite(observation)

    def _check_finite(self, observation: _Buffer, reward: Array | None = None) -> None:
        leaves = [("observation", observation[0])] if observation[1] is not None else []
        if reward is not None:
            leaves.append(("reward", reward))
        for leaf, values in leaves:
            finite = np.isfinite(values)
            if not finite.all():
                row, *index = (int(i) for i in np.argwhere(~finite)[0])
                length = self._step - int(self._statistics.first_step[row])
                raise EnvError(
                    f"{leaf}{index or ''} of environment {row} of {self._where()} must be finite, at step {length} of "
                    f"its episode (env step {self._step}). Received: {values[(row, *index)]}"
                )

    def _check_final_obs(self, infos: dict[str, Any]) -> None:
        given = "final_obs" in infos
        if self.autoreset_mode is AutoresetMode.SAME_STEP and not given:
            raise self._misbehaves("gave no `infos['final_obs']` at the end of an episode")
        if self.autoreset_mode is not AutoresetMode.SAME_STEP and given and not self._mode_checked:
            raise self._misbehaves("gave `infos['final_obs']` at the end of an episode, as SAME_STEP does")

    def _check_others_kept(self, fresh: Array, observation: Array, ended: Array) -> None:
        self._mode_checked = True
        if not np.array_equal(fresh[~ended], observation[~ended]):
            raise self._misbehaves("ignored `options['reset_mask']` and reset other environments too")

    def _misbehaves(self, what: str) -> EnvError:
        return EnvError(
            f"{self._where()} {what}; mend its `metadata['autoreset_mode']` or pass `autoreset_mode=`. "
            f"Received: autoreset_mode={self.autoreset_mode.name}"
        )

    def _where(self) -> str:
        return f"env `{self.name}`" + ("" if self._actor is None else f" in actor {self._actor}")

    def _warn_of_normalization(self) -> None:
        flags = {
            "normalize_observation": (gym.wrappers.NormalizeObservation, vector_wrappers.NormalizeObservation),
            "normalize_reward": (gym.wrappers.NormalizeReward, vector_wrappers.NormalizeReward),
        }
        for flag, wrappers in flags.items():
            if _has(self.vector_env, *wrappers):
                warnings.warn(
                    f"{self._where()} holds Gymnasium's {wrappers[0].__name__}, whose statistics differ between "
                    f"environments and reach no checkpoint; use `{flag}=True` instead.",
                    stacklevel=3,
                )


@np.errstate(over="ignore")
def _surely_finite(reward: Array, flat: Array | None) -> bool:
    """One dot product finds any NaN or infinity; finite values whose squares overflow have to be looked at again."""
    return math.isfinite(reward.dot(reward)) and (flat is None or math.isfinite(flat.dot(flat)))


def _has(vector_env: AnyVectorEnv, *wrappers: type) -> bool:
    return any(isinstance(layer, wrappers) for layer in layers(vector_env))


def _name(vector_env: AnyVectorEnv) -> str:
    base: Any = vector_env.unwrapped
    if isinstance(base, gym.vector.SyncVectorEnv):
        base = base.envs[0].unwrapped
    return type(base).__name__ if base.spec is None else str(base.spec.id)
