"""What each metric of metrics.jsonl means, for the documentation; a name with <...> stands for several."""

from __future__ import annotations

import re

METRICS = {
    "env_steps": "env steps so far, over all environments",
    "updates": "updates of the learner so far",
    "time_seconds": "wall-clock seconds since the run began, without the time between a stop and a resume",
    "steps_per_second": "env steps per second since the last row",
    "episode_return": "mean return of the last 100 finished episodes: sums of raw rewards, without discount",
    "episode_length": "mean length of these episodes, in env steps",
    "episode/<key>": "mean of an entry of the last step's `info`, over these episodes; `info_keys` names the entries",
    "policy_lag": "mean age of the weights that acted the batch, in versions",
    "policy_lag_max": "greatest age of the weights that acted the batch, in versions",
    "learning_rate": "step size of the optimizer, after the update",
    "loss": "the loss that gradients are taken of, mean over the update's minibatches, as all losses are",
    "policy_loss": "the policy's part of the loss",
    "value_loss": "mean squared error of the value",
    "entropy": "mean entropy of the policy; it falls as the policy decides",
    "approx_kl": "divergence of the new policy from the one that acted, by the mean of r - 1 - log r; r: their ratio",
    "update_kl": "divergence of the new policy from the one before the update; with `target_kl` or `desired_kl`",
    "clip_fraction": "share of rows whose ratio is outside of the clip range",
    "explained_variance": "1 - var(return - value) / var(return), before the update: 1 is a perfect value, 0 one that "
    "says nothing, less is worse than a constant",
    "gradient_norm": "global norm of the gradient before it is clipped",
    "rho": "mean importance weight of the batch, not above `rho_clip`; 1 on-policy",
    "rho_clip_fraction": "share of rows whose importance weight is cut to `rho_clip`",
    "critic_loss": "half of the mean squared error of the critics, summed over them",
    "q_value": "mean value of the drawn actions",
    "td_error": "mean absolute difference between targets and values",
    "ent_coef": "weight of the entropy",
    "ent_coef_loss": "loss of the logarithm of that weight, where it is learned",
    "epsilon": "probability of a random action",
    "gradient_steps": "gradient steps so far",
    "gradient_steps_owed": "gradient steps that env steps were due and that aren't taken yet",
    "buffer_rows": "rows of the replay buffer that can be drawn",
    "skipped_steps": "steps that float16's loss scale skipped",
    "loss_scale": "factor of the loss in float16",
    "undone": "1 where the update wasn't finite and left nothing behind; else absent",
    "time/learning": "share of the learner's time in updates",
    "time/collecting": "share of the learner's time in which it waits for a batch",
    "time/env": "share of the actors' time in environments",
    "time/acting": "share of the actors' time in the policy",
    "time/other": "share of the actors' time in copying and everything else",
    "time/waiting": "share of the actors' time in which they wait for weights, or for other actors",
    "actor_restarts": "actors that were replaced so far",
    "actor_restart_causes": "why actors were replaced since the last row: a list of texts",
    "memory/<process>_mb": "memory of the learner or an actor with its children, in MB of 10^6 bytes",
    "cpu/<process>": "CPU time per second of the learner, an actor or all others; 1 is one core",
    "cpu/pressure": "share of the last ten seconds in which some process waited for a core",
    "host/<name>/steps_per_second": "env steps per second of a machine's actors",
    "host/<name>/waiting": "share of their time in which they wait",
    "host/<name>/megabytes_per_second": "MB that come from the machine in a second",
    "host/<name>/receiving": "share of time in which columns are on their way from it",
}


def describe(metric: str) -> str | None:
    """Return the meaning of a metric; None if it isn't known, as that of a loss of one's own."""
    for name, meaning in METRICS.items():
        if re.fullmatch(re.sub(r"<\w+>", ".+", name), metric):
            return meaning
    return None
