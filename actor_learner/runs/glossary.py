"""The meaning of each metric of metrics.jsonl, for the documentation. A name with <...> stands for several metrics."""

from __future__ import annotations

import re

METRICS = {
    "env_steps": "env steps so far, over all environments",
    "offline_steps": "gradient steps that a run took on the rows of its buffer before the first env step",
    "updates": "updates of the learner so far",
    "time_seconds": "wall-clock seconds since the run began, without the time between a stop and a resume",
    "steps_per_second": "env steps per second since the last row",
    "episode_return": "mean return of the last 100 finished episodes: sums of raw rewards, without discount",
    "episode_length": "mean length of these episodes, in env steps",
    "episode/<key>": "mean of an entry of the last step's `info`, over these episodes; `info_keys` names the entries",
    "policy_lag": "mean age of the weights that collected the batch, in versions",
    "policy_lag_max": "greatest age of the weights that collected the batch, in versions",
    "learning_rate": "step size of the optimizer, after the update",
    "loss": "the loss whose gradient is taken; like all losses, a mean over the update's minibatches",
    "policy_loss": "the policy's part of the loss",
    "value_loss": "mean squared error of the value",
    "entropy": "mean entropy of the policy; it falls as the policy becomes more certain",
    "approx_kl": "divergence of the new policy from the one that acted: the mean of r - 1 - log r, with their ratio r",
    "update_kl": "divergence of the new policy from the one before the update; only with `target_kl` or `desired_kl`",
    "clip_fraction": "share of rows whose ratio is outside of the clip range",
    "explained_variance": "1 - var(return - value) / var(return), before the update: 1 for a perfect value, 0 for a "
    "constant, below 0 for a value that is worse than a constant",
    "gradient_norm": "global norm of the gradient before it is clipped",
    "advantage_weight": "mean weight of recorded actions in the policy's loss: exp(temperature x advantage), bounded",
    "rho": "mean importance weight of the batch, not above `rho_clip`; 1 on-policy",
    "rho_clip_fraction": "share of rows whose importance weight is clipped to `rho_clip`",
    "critic_loss": "mean squared error of the critics (SAC: half of it; TQC: the quantile loss), summed over them",
    "q_value": "mean value of the actions in the drawn rows",
    "td_error": "mean absolute difference between targets and values",
    "ent_coef": "weight of the entropy",
    "ent_coef_loss": "loss of the logarithm of `ent_coef`, if that is learned",
    "epsilon": "probability of a random action",
    "gradient_steps": "gradient steps so far",
    "gradient_steps_owed": "gradient steps that are due for the env steps so far and aren't taken yet",
    "buffer_rows": "rows of the replay buffer that can be drawn",
    "skipped_steps": "steps that float16's loss scale skipped",
    "loss_scale": "factor of the loss in float16",
    "undone": "1 if the update wasn't finite and was undone; otherwise absent",
    "time/learning": "share of the learner's time in updates",
    "time/collecting": "share of the learner's time in which it waits for a batch",
    "time/env": "share of the actors' time in environments",
    "time/acting": "share of the actors' time in the policy",
    "time/other": "share of the actors' time in copying and in the rest of our code",
    "time/waiting": "share of the actors' time in which they wait for weights, or for other actors",
    "league/versions": "versions of the policy that self-play has frozen so far",
    "league/score": "mean outcome of the last 200 episodes of self-play: 1 for a win, 0.5 for a draw, 0 for a loss",
    "league/score_random": "score against the random player, of which older games count less",
    "league/rating": "rating of the policy before the newest version on Elo's scale, the random player's being 0",
    "actor_restarts": "actors that were replaced so far",
    "actor_restart_causes": "causes of the replacements since the last row: a list of texts",
    "memory/<process>_mb": "memory of the learner or an actor with its children, in MB of 10^6 bytes",
    "cpu/<process>": "CPU time per second of the learner, an actor, or all other programs (`others`); 1 is one core",
    "cpu/pressure": "share of the last ten seconds in which some process waited for a core",
    "host/<name>/steps_per_second": "env steps per second of a machine's actors",
    "host/<name>/waiting": "share of the time of a machine's actors in which they wait",
    "host/<name>/megabytes_per_second": "MB per second that a machine sends",
    "host/<name>/receiving": "share of time in which columns of a machine are on their way",
    "<policy>/<metric>": "a metric of one policy, where several play; `episode_return` alone is then a mean over those",
}


def describe(metric: str) -> str | None:
    """Return the meaning of a metric; None if it isn't known, such as a metric of a custom loss."""
    for name, meaning in METRICS.items():
        if re.fullmatch(re.sub(r"<\w+>", ".+", name), metric):
            return meaning
    return None
