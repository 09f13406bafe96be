"""A run's directory without a run: config.json and rows of metrics as one would have written them."""

from __future__ import annotations

import actor_learner as al
from actor_learner.runs.directory import begin_run, claim_run
from actor_learner.runs.metrics import MetricsFile


def create_run(config):
    """Makes the run's directory and writes its config.json, as a run does under its lock."""
    run = claim_run(config)
    begin_run(run, config)
    return run


def append_metrics(run, row):
    """Adds one row to metrics.jsonl."""
    MetricsFile(run.metrics).append(row)


def create_ended_run(folder, observation_space, action_space, network, **settings):
    """Return the folder of what a run leaves when it has ended, as far as exporting it goes."""
    from actor_learner.networks.saving import save_network
    from actor_learner.policy.export.exporting import export_policy

    run = create_run(al.TrainConfig(run_dir=folder, **settings))
    save_network(network, run.path)
    export_policy(network, action_space, 1, observation_space, masked=True).save(run.policy)
    return run.path
