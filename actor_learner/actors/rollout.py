"""The rollout of a batch as one program: policy, environments and resets in a scan over the steps of an unroll."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from actor_learner.actors.transport.batches import EPISODE_INFO, EPISODE_LENGTH, EPISODE_RETURN
from actor_learner.environments.jax.checks import check_env
from actor_learner.environments.jax.vector import reset_ended
from actor_learner.learner.acting import DeviceStep
from actor_learner.learner.jax.compiled import AXIS
from actor_learner.spaces.jax_env import JaxEnv
from actor_learner.spaces.kinds import Box, middle
from actor_learner.spaces.structure import MASK_KEY, Leaf
from actor_learner.spaces.trajectory import BY_COLUMN
from actor_learner.system.types import Tensor

CHECKED = ("observation", "reward", "behaviour_log_prob", MASK_KEY)
"""What a rollout says to be as it must: finite, or for a mask with an allowed action for each choice."""


class Carry(NamedTuple):
    """What goes on from batch to batch, on the device: but for the key, a row for each environment."""

    key: Tensor
    state: Any  # of the environments
    observation: tuple[Tensor, ...]  # leaves, to act on next
    start: Tensor  # bool, True where an episode begins with it
    memory: tuple[Tensor, ...]  # leaves of the network's state
    returns: Tensor  # of the episodes so far, float32
    lengths: Tensor


class Cut(NamedTuple):
    """The first K truncations of each column in an unroll, `[K, N, ...]`, in the order of their rows."""

    row: Tensor  # int32, -1: none
    observation: tuple[Tensor, ...]  # leaves of the last observations
    memory: tuple[Tensor, ...]  # leaves of the states in which they are seen
    mask: tuple[Tensor, ...]  # bool, that of the last observations, where there are masks


class Rollout:
    """Steps `num_envs` environments `steps` times with a policy, by a program of the device or of several.

    step: the policy's. ladder: the exponent of epsilons over environments. info_keys: entries of `Step.info` to report;
    the attribute has those that the environment has.

    Raises EnvError where the environment isn't what `JaxEnv` asks for, before anything is compiled.
    """

    def __init__(
        self,
        env: JaxEnv,
        step: DeviceStep,
        distribution: str,
        *,
        num_envs: int,
        steps: int,
        ladder: float = 0.0,
        info_keys: Sequence[str] = (),
        devices: int = 1,
    ) -> None:
        self._env, self._weights_of = env, step.weights_of
        self._policy, self._spaces = step.policy, step.policy.spaces
        self._num_envs, self._steps, self._ladder = num_envs, steps, ladder
        self._devices, self._on_gpu = devices, "GPU" in step.device
        self._to_env = [_to_env(leaf, distribution) for leaf in self._spaces.action.leaves]
        self._masks_from_env = self._spaces.masked and not self._spaces.has_mask_leaf
        self.info_keys, self._expensive_resets = check_env(env, self._spaces, info_keys)

    def begin(self, key: Tensor) -> Carry:
        """Return the carry with which the first rollout starts: new episodes in all environments."""
        key, own = jax.random.split(key)
        state, observation = self._reset(_keys(own, jnp.arange(self._num_envs)))
        memory = tuple(jnp.zeros((self._num_envs, *shape), jnp.float32) for shape in self._policy.state_shapes)
        zeros = jnp.zeros(self._num_envs, jnp.float32)
        carry = Carry(key, state, observation, jnp.ones(self._num_envs, bool), memory, zeros, zeros)
        strong: Carry = jax.tree.map(_strong, carry)
        return strong

    def __call__(self, weights: Tensor, carry: Carry, cuts: int) -> tuple[Carry, dict[str, Tensor]]:
        """Return the carry after an unroll, and the arrays of a block, by their names. weights: a vector.

        Beside them, `cuts [devices]` has the largest numbers of truncations in a column: where one is above the
        argument, the arrays are wrong, and the rollout has to be repeated with more. `fine`: bool `[devices, 4]`, by
        `CHECKED`.
        """
        key, of_noise, of_steps = jax.random.split(carry.key, 3)
        index = jnp.arange(self._num_envs)
        steps = self._noise(of_noise), jax.random.split(of_steps, self._steps)
        arguments = self._weights_of(weights), carry._replace(key=None), *steps, index

        def unroll(*arguments: Any) -> tuple[Carry, dict[str, Tensor]]:
            return self._unroll(*arguments, cuts=cuts)

        if self._devices > 1:
            columns, rows, everywhere = PartitionSpec(AXIS), PartitionSpec(None, AXIS), PartitionSpec()
            results = jax.tree_util.tree_map_with_path(placement, jax.eval_shape(unroll, *arguments))
            given = everywhere, columns, rows, everywhere, columns
            unroll = jax.shard_map(unroll, in_specs=given, out_specs=results, check_vma=False)
        after, arrays = unroll(*arguments)
        return after._replace(key=key), arrays

    def _unroll(
        self, weights: Sequence[Tensor], carry: Carry, noise: Tensor, keys: Tensor, index: Tensor, *, cuts: int
    ) -> tuple[Carry, dict[str, Tensor]]:
        """Return the carry and the arrays for the environments with these numbers, `index [N]`."""
        count = len(index)
        none = Cut(
            jnp.full((cuts, count), -1, jnp.int32),
            tuple(jnp.zeros((cuts, *leaf.shape), leaf.dtype) for leaf in carry.observation),
            tuple(jnp.zeros((cuts, *leaf.shape), leaf.dtype) for leaf in carry.memory),
            (jnp.zeros((cuts, count, self._spaces.mask_size), bool),) if self._spaces.masked else (),
        )

        first = carry, none, jnp.zeros(count, jnp.int32)
        rows = jnp.arange(self._steps, dtype=jnp.int32), keys, noise
        step = functools.partial(self._step, weights, index)
        (after, cut, counts), arrays = jax.lax.scan(step, first, rows)
        return after, self._block_arrays(weights, carry, after, cut, counts, arrays)

    def _step(
        self,
        weights: Sequence[Tensor],
        index: Tensor,
        scan_state: tuple[Carry, Cut, Tensor],
        row_inputs: tuple[Tensor, Tensor, Tensor],
    ) -> tuple[tuple[Carry, Cut, Tensor], dict[str, Any]]:
        """Act in all environments, step them, and reset those that ended.

        scan_state: with the number of truncations of each column. row_inputs: row, key and noise. Return the next scan
        state and the row's arrays.
        """
        (before, cut, counts), (row, key, drawn) = scan_state, row_inputs
        mask = self._mask(before.state, before.observation)
        acted = self._policy.step(self._inputs(before.observation, before.start, before.memory, drawn, mask), weights)
        of_step, of_reset = jax.random.split(key)
        action = self._spaces.action.unflatten(
            [to_env(leaf) for to_env, leaf in zip(self._to_env, acted.action, strict=True)]
        )
        stepped = jax.vmap(self._env.step)(_keys(of_step, index), before.state, action)
        seen = self._leaves(stepped.observation)
        terminated = stepped.terminated != 0
        truncated = (stepped.truncated != 0) & ~terminated
        done = terminated | truncated
        reward = jnp.asarray(stepped.reward, jnp.float32)
        last_mask = (self._mask(stepped.state, seen),) if self._spaces.masked else ()
        cut = _with_cut(cut, truncated, counts, row, (seen, tuple(acted.state), last_mask))
        state, observation = self._reset_ended(done, of_reset, index, stepped.state, seen)
        returns, lengths = before.returns + reward, before.lengths + 1.0
        arrays = {
            "observation": before.observation,
            "action": acted.action,
            "reward": reward,
            "terminated": terminated,
            "truncated": truncated,
            "behaviour_log_prob": acted.log_prob.reshape(-1),
            "start": before.start,
            EPISODE_RETURN: jnp.where(done, returns, jnp.nan),
            EPISODE_LENGTH: jnp.where(done, lengths, jnp.nan),
            **({} if mask is None else {MASK_KEY: mask}),
            **{
                EPISODE_INFO + name: jnp.where(done, jnp.asarray(stepped.info[name], jnp.float32), jnp.nan)
                for name in self.info_keys
            },
        }
        running = (jnp.where(done, jnp.zeros_like(totals), totals) for totals in (returns, lengths))
        after = Carry(before.key, state, observation, done, tuple(acted.state), *running)
        return (jax.tree.map(_strong, after), cut, counts + truncated), arrays

    def _block_arrays(
        self, weights: Sequence[Tensor], before: Carry, after: Carry, cut: Cut, counts: Tensor, arrays: dict[str, Any]
    ) -> dict[str, Tensor]:
        """Return the arrays of a block, from those of the scan."""
        found: dict[str, Tensor] = dict(arrays)
        fine = [jnp.bool_(True)]
        last = jnp.minimum(jnp.maximum(counts - 1, 0), len(cut.row) - 1), jnp.arange(len(counts))
        observations = zip(
            self._spaces.observation.leaves, found.pop("observation"), after.observation, cut.observation, strict=True
        )
        for leaf, values, end, ends in observations:
            found[leaf.name] = jnp.concatenate([values, end[None]])
            found[f"final_{leaf.name}"] = ends[last]
            fine += [_is_fine(leaf, found[leaf.name]), _is_fine(leaf, ends)]
        for leaf, values in zip(self._spaces.action.leaves, found.pop("action"), strict=True):
            found[leaf.name] = values.astype(leaf.dtype)
        found["start"] = jnp.concatenate([found["start"], after.start[None]])
        found["final_row"] = cut.row[last]
        found |= {f"initial_state/{number}": leaf for number, leaf in enumerate(before.memory)}
        found["truncation_value"] = self._truncation_values(weights, cut)
        masks = jnp.bool_(True)
        if MASK_KEY in found:
            following = jnp.expand_dims(self._mask(after.state, after.observation), 0)
            found[MASK_KEY] = jnp.concatenate([found[MASK_KEY], following])
            found[f"final_{MASK_KEY}"] = cut.mask[0][last]
            choices = (slice(each.first_column, each.first_column + each.size) for each in self._spaces.masks.choices)
            masks = jnp.stack([found[MASK_KEY][..., columns].any(-1).all() for columns in choices]).all()
        numbers = (jnp.isfinite(found[name]).all() for name in ("reward", "behaviour_log_prob"))
        found["fine"] = jnp.stack([jnp.stack(fine).all(), *numbers, masks])[None]
        found["cuts"] = counts.max()[None]
        return found

    def _truncation_values(self, weights: Sequence[Tensor], cut: Cut) -> Tensor:
        """Return the values of the last observations of truncated episodes at their rows, `[T, N]`, 0 elsewhere."""
        cuts, count = cut.row.shape
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), cut)
        no_start = jnp.zeros(cuts * count, bool)

        def values() -> Tensor:
            inputs = self._inputs(flat.observation, no_start, flat.memory)
            if self._policy.draws:
                columns = sum(self._policy.distribution.noise) + self._policy.draws
                inputs.append(jnp.zeros((cuts * count, columns), jnp.float32))
            return self._policy.value(inputs, weights).reshape(cuts, count)

        found = jax.lax.cond((cut.row >= 0).any(), values, lambda: jnp.zeros((cuts, count), jnp.float32))
        at = cut.row == jnp.arange(self._steps)[:, None, None]  # [T, K, N]
        return jnp.where(at, found, 0.0).sum(1)

    def _reset(self, keys: Tensor) -> tuple[Any, tuple[Tensor, ...]]:
        """Return states and the leaves of observations of new episodes, one for each key."""
        state, observation = jax.vmap(self._env.reset)(keys)
        return state, self._leaves(observation)

    def _reset_ended(self, done: Tensor, key: Tensor, index: Tensor, state: Any, seen: tuple[Tensor, ...]) -> Any:
        """Return states and observations, those of new episodes where `done [N]`."""
        before = jax.tree.map(_strong, (state, seen))

        def reset(rows: Any) -> Any:
            return jax.tree.map(_strong, self._reset(_keys(key, index[rows])))

        return reset_ended(reset, done, before, expensive=self._expensive_resets, on_gpu=self._on_gpu)

    def _leaves(self, observation: Any) -> tuple[Tensor, ...]:
        """Return the leaves of observations as a trajectory has them."""
        leaves = self._spaces.observation.leaves
        found = zip(leaves, self._spaces.observation.flatten(observation), strict=True)
        return tuple((value if leaf.start is None else value - leaf.start).astype(leaf.dtype) for leaf, value in found)

    def _mask(self, state: Any, observation: tuple[Tensor, ...]) -> Tensor | None:
        """Return which actions are allowed, bool `[N, M]`; None where the environments give no masks."""
        if not self._spaces.masked:
            return None
        if self._masks_from_env:
            return jax.vmap(getattr(self._env, MASK_KEY))(state) != 0
        parts = zip(self._spaces.observation.leaves, observation, strict=True)
        masks = [value.reshape(len(value), -1) for leaf, value in parts if leaf.path[:1] == (MASK_KEY,)]
        return jnp.concatenate(masks, axis=1) != 0

    def _inputs(
        self,
        observation: Sequence[Tensor],
        start: Tensor,
        memory: Sequence[Tensor],
        noise: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> list[Tensor]:
        """Return inputs of `PolicyStep`: of its step with noise, else of its value."""
        inputs = list(observation)
        if self._policy.state_shapes:
            inputs += [start.astype(jnp.float32)[:, None], *memory]
        inputs += [] if noise is None else [noise]
        return inputs if mask is None else [*inputs, mask.astype(jnp.float32)]

    def _noise(self, key: Tensor) -> Tensor:
        """Return the noise of all steps, `[T, N, columns]`, as `PolicyStep` takes it."""
        uniform, normal = self._policy.distribution.noise
        shape = self._steps, self._num_envs
        of_uniform, of_normal, of_all = jax.random.split(key, 3)
        parts = []
        if uniform:
            drawn = 1.0 - jax.random.uniform(of_uniform, (*shape, uniform))
            if self._ladder:
                rungs = 1.0 + self._ladder * jnp.arange(self._num_envs) / max(1, self._num_envs - 1)
                drawn = drawn.at[..., 0].power(1.0 / rungs)
            parts.append(drawn)
        if normal:
            parts.append(jax.random.normal(of_normal, (*shape, normal)))
        if self._policy.draws:
            parts.append(jnp.broadcast_to(1.0 - jax.random.uniform(of_all, (self._steps, 1, 1)), (*shape, 1)))
        return jnp.concatenate(parts, axis=-1) if parts else jnp.zeros((*shape, 0))


def _with_cut(cut: Cut, truncated: Tensor, counts: Tensor, row: Tensor, parts: tuple[tuple[Tensor, ...], ...]) -> Cut:
    """Return the cuts with those of a row: its observations, memories and masks.

    counts: the truncations of each column before it, `[N]`.
    """
    places = truncated & (counts == jnp.arange(len(cut.row))[:, None])

    def put(new: Tensor, old: Tensor) -> Tensor:
        return jnp.where(places.reshape(*places.shape, *(1,) * (new.ndim - 1)), new, old)

    found: Cut = jax.tree.map(put, Cut(row, *parts), cut)
    return found


def _keys(key: Tensor, index: Tensor) -> Tensor:
    """Return a key for each environment, which depends on its number alone."""
    return jax.vmap(jax.random.fold_in, (None, 0))(key, index)


def _strong(leaf: Tensor) -> Tensor:
    """Return an array without a weak type: a program's own results have none, and it would be compiled twice."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return leaf
    return jax.lax.convert_element_type(leaf, leaf.dtype)


def _is_fine(leaf: Leaf, values: Tensor) -> Tensor:
    """Return whether observations are finite, or within their range."""
    if jnp.issubdtype(values.dtype, jnp.floating):
        return jnp.isfinite(values).all()
    if isinstance(leaf.space, Box):
        return jnp.bool_(True)
    count = np.asarray(getattr(leaf.space, "nvec", getattr(leaf.space, "n", 2)))
    most = 1 if values.dtype == jnp.int8 else count - 1
    return ((values >= 0) & (values <= most)).all()


def _to_env(leaf: Leaf, distribution: str) -> Callable[[Tensor], Tensor]:
    """Return the function that converts a leaf of actions, as `policy.policy.leaf_to_env` does."""
    dtype = jax.dtypes.canonicalize_dtype(leaf.space.dtype)
    if not isinstance(leaf.space, Box):
        start = np.asarray(0 if leaf.start is None else leaf.start, dtype)
        return lambda action: action.astype(dtype) + start
    low, high = leaf.space.low.astype(dtype), leaf.space.high.astype(dtype)
    if distribution == "squashed":
        centre, scale = middle(leaf.space, dtype)
        return lambda action: jnp.clip(centre + scale * jnp.tanh(action.astype(dtype)), low, high)
    return lambda action: jnp.clip(action.astype(dtype), low, high)


def placement(path: Any, leaf: Any) -> PartitionSpec:
    """Return how several devices hold a part of a rollout's result: by columns, `[N, ...]` or `[T, N, ...]`."""
    if path[0].idx == 0:
        return PartitionSpec() if path[1].name == "key" else PartitionSpec(AXIS)
    name = path[1].key
    by_column = name in ("fine", "cuts") or name.partition("/")[0] in BY_COLUMN
    return PartitionSpec(AXIS) if by_column else PartitionSpec(None, AXIS)
