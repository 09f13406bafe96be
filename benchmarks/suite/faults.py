"""Small faults to plant in the package, one at a time: each is a line that a change could break unnoticed.

`old` stands once in the file, and `new` in its place is a program that starts, runs, and is wrong. `near` are the tests
that are tried first.
"""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    """A line of a file of the package, and the wrong line that takes its place."""

    name: str
    file: str  # below actor_learner/
    old: str
    new: str
    near: tuple[str, ...]  # below tests/


FAULTS = (
    Fault(
        "GAE subtracts the bootstrap value",
        "algorithms/returns.py",
        "delta = ops.where(valid, reward + gamma * bootstrap - current,",
        "delta = ops.where(valid, reward - gamma * bootstrap - current,",
        ("algorithms/test_returns.py",),
    ),
    Fault(
        "V-trace doesn't clip c",
        "algorithms/returns.py",
        "decay * clip_weight(rho, c_clip))",
        "decay * rho)",
        ("algorithms/test_vtrace.py",),
    ),
    Fault(
        "PPO takes the larger of both objectives",
        "algorithms/ppo.py",
        "-mean_valid(ops.minimum(advantage * ratio",
        "-mean_valid(ops.maximum(advantage * ratio",
        ("algorithms/test_algorithms.py",),
    ),
    Fault(
        "DQN's targets take forbidden actions",
        "algorithms/off_policy/dqn.py",
        "preferred = ops.where(allowed, preferred, _FORBIDDEN)",
        "preferred = ops.where(allowed, preferred, preferred)",
        ("learner/test_replay.py::test_the_loss_of_dqn_is_that_of_the_paper",),
    ),
    Fault(
        "SAC's target lacks the entropy",
        "algorithms/off_policy/sac.py",
        "target=True), axis=0) - ent_coef * log_prob",
        "target=True), axis=0) - 0.0 * ent_coef * log_prob",
        ("learner/test_replay.py::test_the_losses_of_sac_are_those_of_the_paper",),
    ),
    Fault(
        "TD3's target noise isn't clipped",
        "algorithms/off_policy/td3.py",
        "noise = ops.clip(noise, -self.target_noise_clip, self.target_noise_clip)",
        "noise = ops.clip(noise, -1e9, 1e9)",
        ("learner/test_replay.py::test_the_losses_of_td3_are_those_of_the_paper",),
    ),
    Fault(
        "observations of invalid rows reach the network",
        "learner/batch.py",
        'result["observation"] = _zero_invalid(batch["observation"], seen)',
        'result["observation"] = batch["observation"]',
        ("learner/test_composites.py::test_what_stands_in_invalid_rows_changes_nothing", "learner/test_learner.py"),
    ),
    Fault(
        "the learner's log-probabilities ignore masks",
        "learner/evaluation.py",
        'self._distribution.log_prob(outputs["parameters"], action, rows.get("action_mask"))',
        'self._distribution.log_prob(outputs["parameters"], action, None)',
        (
            "learner/test_composites.py::test_masks_are_in_log_prob_and_entropy_of_the_loss",
            "learner/test_learner.py::test_the_ratio_is_1_in_the_compiled_update",
        ),
    ),
    Fault(
        "an undone update keeps the optimizer's state",
        "learner/update.py",
        '            "optimizer": list(self._optimizer.variables),\n            "statistics": [',
        '            "optimizer": [],\n            "statistics": [',
        ("learner/test_rollback.py::test_an_undone_update_never_was",),
    ),
    Fault(
        "statistics of observations count invalid rows",
        "learner/update.py",
        'layer.update(contract.normalized_leaf(layer, rows["observation"]), rows["valid"])',
        'layer.update(contract.normalized_leaf(layer, rows["observation"]), rows["valid"] | True)',
        (
            "learner/test_learner.py::test_the_first_batch_only_sets_the_statistics_with_which_the_second_was_collected",
            "learner/test_composites.py::test_each_leaf_has_statistics_of_its_own",
        ),
    ),
    Fault(
        "rows of the burn-in are learned from",
        "learner/batch.py",
        'ops.arange(steps["valid"].shape[0]) >= burn_in, 1)',
        'ops.arange(steps["valid"].shape[0]) >= 0, 1)',
        ("learner/test_memory.py::test_rows_of_the_burn_in_are_not_learned_from",),
    ),
    Fault(
        "scaled returns aren't carried to the next batch",
        "learner/rewards.py",
        "carried = ops.where(goes_on, discounted[-1], ops.zeros_like(discounted[-1]))",
        "carried = ops.where(goes_on, discounted[-1] * 0.0, ops.zeros_like(discounted[-1]))",
        ("learner/test_rewards.py",),
    ),
    Fault(
        "a saved learner lacks the optimizer's state",
        "learner/base.py",
        'groups = {"optimizer": self.optimizer.variables, "reward_scaling": scaling}',
        'groups = {"optimizer": [], "reward_scaling": scaling}',
        ("learner/test_state.py",),
    ),
    Fault(
        "a resumed off-policy run forgets its targets' moves",
        "learner/replay.py",
        "self._targets_at = max(self._targets_at, env_steps)",
        "self._targets_at = env_steps - env_steps % 64",
        ("learner/test_replay.py::test_targets_move_at_multiples_of_their_interval",),
    ),
    Fault(
        "JAX's gradients leave out the losses of layers",
        "learner/jax/compiled.py",
        "return keras.StatelessScope(mapping, collect_losses=True,",
        "return keras.StatelessScope(mapping, collect_losses=False,",
        ("learner/test_backends_agree.py",),
    ),
    Fault(
        "a batch beyond the ring's end is written to its first columns twice",
        "replay/buffer.py",
        "self._write(columns_of(piece, start, stop), first)",
        "self._write(columns_of(piece, 0, stop - start), first)",
        ("replay",),
    ),
    Fault(
        "n-step returns cross the end of an episode",
        "replay/targets.py",
        "        now &= ~ended[ahead:]\n",
        "        now &= ~trajectory.terminated[ahead:]\n",
        ("replay",),
    ),
    Fault(
        "importance weights grow with priorities",
        "replay/sampler.py",
        "self._priorities.total * self.count) ** -importance_exponent",
        "self._priorities.total * self.count) ** importance_exponent",
        ("replay",),
    ),
    Fault(
        "a truncated episode bootstraps from the next one's first observation",
        "actors/actor.py",
        "np.where(truncated, policy.value_leaves(final), 0.0)",
        "np.where(truncated, policy.value_leaves(observation), 0.0)",
        ("actors/test_actor.py", "actors/test_ends_of_episodes.py"),
    ),
    Fault(
        "an actor begins each unroll with fresh episodes",
        "actors/actor.py",
        "    if started is not None:\n        columns.start[0] = started\n",
        "    columns.start[0] = True\n",
        ("actors/test_actor.py", "actors/test_ends_of_episodes.py", "learner/test_memory.py"),
    ),
    Fault(
        "at lag 1 a batch may be two versions old",
        "actors/scheduling.py",
        "while self._assigned <= self._taken + ahead:",
        "while self._assigned <= self._taken + 2 * ahead:",
        ("actors/test_scheduling.py", "actors/test_pool.py"),
    ),
    Fault(
        "a slot of weights that an actor reads is overwritten",
        "actors/transport/weights.py",
        "if not readers and i != self.newest.slot)",
        "if i != self.newest.slot)",
        ("actors/transport",),
    ),
    Fault(
        "replaced actors aren't counted as faults",
        "actors/processes/restarts.py",
        "            self._faults += 1\n",
        "",
        ("actors/processes", "faults/test_replacement.py"),
    ),
    Fault(
        "a cluster's stacked frames lose those that differ",
        "actors/cluster/codec.py",
        "                frames[row, ~like_the_last] = others[taken : taken + count]\n",
        "",
        ("actors/cluster",),
    ),
    Fault(
        "all environments have the same noise",
        "policy/noise.py",
        "key = (*self._sequence.spawn_key, self._first_stream + row)",
        "key = (*self._sequence.spawn_key, 0 * row)",
        ("policy/test_noise.py",),
    ),
    Fault(
        "actions aren't clipped to the upper bound",
        "policy/policy.py",
        "return lambda action: np.minimum(np.maximum(np.asarray(action, dtype), low), high)",
        "return lambda action: np.maximum(np.asarray(action, dtype), low)",
        ("policy/test_composite.py",),
    ),
    Fault(
        "a memory goes on across episodes",
        "networks/memory.py",
        "return ops.where(ops.reshape(start, (-1,) + (1,) * (len(state.shape) - 1)), initial, state)",
        "return ops.where(ops.reshape(start, (-1,) + (1,) * (len(state.shape) - 1)), state, state)",
        ("networks/test_memory.py",),
    ),
    Fault(
        "the best checkpoint is removed like any other",
        "runs/checkpoints.py",
        "if path not in best and not self._marks[path.name][1]]",
        "if not self._marks[path.name][1]]",
        ("runs/test_checkpoints.py",),
    ),
    Fault(
        "rows after the checkpoint stay in metrics.jsonl",
        "runs/resume.py",
        "trim_metrics(run.metrics, state.updates, state.metrics_size):",
        "trim_metrics(run.metrics, state.updates + 10**6, 10**12):",
        ("runs/test_resume.py",),
    ),
    Fault(
        "a step that only resets counts as a step",
        "environments/environments.py",
        "        return ~resetting\n",
        "        return ~resetting | True\n",
        ("environments", "actors/test_ends_of_episodes.py"),
    ),
    Fault(
        "a discrete observation one above the last is accepted",
        "environments/buffers.py",
        "return np.uint32(space.n)",
        "return np.uint32(space.n + 1)",
        ("environments",),
    ),
    Fault(
        "a lost life counts as an episode",
        "environments/environments.py",
        "ended = truncated | (terminated & ~np.asarray(infos[LIFE_LOST], dtype=bool))",
        "ended = truncated | terminated",
        ("environments",),
    ),
)
