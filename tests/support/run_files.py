"""A run's directory without a run: config.json and rows of metrics as one would have written them."""

from __future__ import annotations

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
