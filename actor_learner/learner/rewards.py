"""The rewards that the learner learns from: clipped, or scaled by the running std of the discounted return."""

from __future__ import annotations

from dataclasses import dataclass

import keras
from keras import ops

from actor_learner.algorithms.returns import forward_sum
from actor_learner.networks.layers import merge_statistics
from actor_learner.system.types import Tensor

SCALED_REWARD_CLIP = 10.0
SCALING_EPSILON = 1e-8


def clip_reward(reward: Tensor, clip: str | float | None) -> Tensor:
    """Return `reward` unchanged (None), its sign ("sign"), or clipped to +-`clip`."""
    if clip is None:
        return reward
    return ops.clip(reward, -clip, clip) if isinstance(clip, (int, float)) else ops.sign(reward)


@dataclass(frozen=True)
class ReturnStatistics:
    """The running statistics of discounted returns that rewards are scaled by."""

    mean: float = 0.0
    variance: float = 0.0
    count: float = 0.0


NO_RETURNS = ReturnStatistics()


class RewardScaling:
    """Divides rewards by the running std of the discounted return of each environment.

    Rewards aren't centred, and are clipped to +-10; a batch enters the statistics before it is scaled. Each environment
    has a discounted return, which continues from batch to batch and starts anew with each episode: SB3's
    `VecNormalize(norm_obs=False)`, a batch at a time.

    A batch of actors that run freely may hold an environment twice, in an unknown order: its columns there start at 0,
    and so does its next column. A column that ended early is `truncated`, and starts its return anew.

    statistics: Those to start from; the discounted returns start at 0.
    """

    def __init__(self, num_envs: int, gamma: float, statistics: ReturnStatistics = NO_RETURNS) -> None:
        self.gamma = gamma
        self.discounted_return = _variable((num_envs,), "discounted_return")
        self.mean = _variable((), "return_mean", statistics.mean)
        self.variance = _variable((), "return_variance", statistics.variance)
        self.count = _variable((), "return_count", statistics.count)

    @property
    def variables(self) -> list[keras.Variable]:
        return [self.discounted_return, self.mean, self.variance, self.count]

    def scale(
        self, reward: Tensor, ended: Tensor, valid: Tensor, env_index: Tensor, begins: Tensor | None = None
    ) -> Tensor:
        """Merge a batch into the statistics, and scale it.

        reward, ended, valid: `[T, B]`; env_index: `[B]`; begins: bool `[B]`, True where the first row begins an
        episode, as it does after a replacement of the actor or of the whole process; None: unknown.
        """
        same = ops.equal(ops.expand_dims(env_index, 1), ops.expand_dims(env_index, 0))
        alone = ops.equal(ops.sum(ops.cast(same, "int32"), axis=1), 1)  # the only column of its environment
        known = ops.take(self.discounted_return, env_index)
        continues = alone if begins is None else ops.logical_and(alone, ops.logical_not(begins))
        initial = ops.where(continues, known, ops.zeros_like(known))
        discounted = self._discounted_returns(reward, ended, valid, initial)
        weight = ops.cast(valid, "float32")
        added = ops.sum(weight)
        mean = ops.sum(discounted * weight) / ops.maximum(added, 1.0)
        sum_of_squares = ops.sum(ops.square(discounted - mean) * weight)
        statistics = self.mean, self.variance, self.count
        merged = merge_statistics([variable.value for variable in statistics], (mean, sum_of_squares, added))
        for variable, value in zip(statistics, merged, strict=True):
            variable.assign(value)
        # Columns of the same environment all write 0, so their order doesn't matter.
        goes_on = ops.logical_and(alone, ops.logical_not(ended[-1]))
        carried = ops.where(goes_on, discounted[-1], ops.zeros_like(discounted[-1]))
        self.discounted_return.assign(
            ops.scatter_update(self.discounted_return, ops.expand_dims(env_index, -1), carried)
        )
        scaled = reward / ops.sqrt(merged[1] + SCALING_EPSILON)
        return ops.clip(scaled, -SCALED_REWARD_CLIP, SCALED_REWARD_CLIP)

    def _discounted_returns(self, reward: Tensor, ended: Tensor, valid: Tensor, initial: Tensor) -> Tensor:
        """Return `R[t] = reward[t] + gamma R[t - 1]`, from `initial [B]`, anew after an end, held at invalid rows."""
        decay = ops.where(valid, self.gamma * ops.ones_like(reward), ops.ones_like(reward))
        started = ops.concatenate([ops.zeros_like(ended[:1]), ended[:-1]], axis=0)
        decay = ops.where(started, ops.zeros_like(decay), decay)
        term = ops.where(valid, reward, ops.zeros_like(reward))
        first = term[:1] + decay[:1] * initial[None]
        return forward_sum(ops.concatenate([first, term[1:]], axis=0), decay)


def _variable(shape: tuple[int, ...], name: str, value: float = 0.0) -> keras.Variable:
    return keras.Variable(ops.full(shape, value), trainable=False, dtype="float32", name=name)
