"""Trajectories: what actors write and the learner reads. Time-major, aligned once, at the write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from gymnasium.spaces import Space

from actor_learner import spaces

Array = np.ndarray[Any, Any]


class Trajectory(NamedTuple):
    """`T` consecutive env steps of each of `B` environments.

    Row `t` holds what was seen, done and received at one step: `action[t]` answers `observation[t]`
    and brought `reward[t]`; `observation[t + 1]` is what was acted on next.
    """

    observation: Array
    """`[T + 1, B, ...]`; the last one is the bootstrap observation."""
    action: Array
    """`[T, B, ...]`: the sample before any clipping; a Discrete action is counted from 0."""
    reward: Array
    """`[T, B]` float32, raw."""
    terminated: Array
    """`[T, B]` bool: the episode ended in a terminal state."""
    truncated: Array
    """`[T, B]` bool: the episode was cut off; never True together with `terminated`."""
    valid: Array
    """`[T, B]` bool: False where a row only resets its environment."""
    behaviour_log_prob: Array
    """`[T, B]` float32: log-probability of `action` under the policy that chose it."""
    truncation_value: Array
    """`[T, B]` float32: value of the true last observation where `truncated`, else 0."""
    policy_version: Array
    """`[B]` int64: version of the weights that chose the actions of a column."""
    action_mask: Array | None = None
    """None (masks aren't supported yet)."""
    env_index: Array | None = None
    """`[B]` int32: which environment a column came from; None means column b is environment b."""
    initial_state: Array | None = None
    """None (recurrent policies aren't supported yet)."""

    def copy(self) -> Trajectory:
        """A trajectory with memory of its own, which outlives the pool's next `collect()`."""
        fields: dict[str, Any] = {
            name: None if field is None else np.array(field) for name, field in self._asdict().items()
        }
        return self._replace(**fields)


@dataclass(frozen=True)
class TrajectorySpec:
    """Shapes and dtypes of a `Trajectory`, derived once from the spaces."""

    observation_shape: tuple[int, ...]
    observation_dtype: np.dtype[Any]
    action_shape: tuple[int, ...]
    action_dtype: np.dtype[Any]
    unroll_length: int
    num_envs: int

    @classmethod
    def from_spaces(
        cls, observation_space: Space[Any], action_space: Space[Any], *, unroll_length: int, num_envs: int
    ) -> TrajectorySpec:
        """The spec of `num_envs` columns of `unroll_length` rows of these spaces."""
        return cls(
            *spaces.observation_shape_dtype(observation_space),
            *spaces.action_shape_dtype(action_space),
            unroll_length=unroll_length,
            num_envs=num_envs,
        )

    def fields(self) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        """Shape and dtype of each field, in `Trajectory`'s order, without those that are None."""
        rows, columns = self.unroll_length, self.num_envs
        flag, number = np.dtype(np.bool_), np.dtype(np.float32)
        return {
            "observation": ((rows + 1, columns, *self.observation_shape), self.observation_dtype),
            "action": ((rows, columns, *self.action_shape), self.action_dtype),
            "reward": ((rows, columns), number),
            "terminated": ((rows, columns), flag),
            "truncated": ((rows, columns), flag),
            "valid": ((rows, columns), flag),
            "behaviour_log_prob": ((rows, columns), number),
            "truncation_value": ((rows, columns), number),
            "policy_version": ((columns,), np.dtype(np.int64)),
            "env_index": ((columns,), np.dtype(np.int32)),
        }
