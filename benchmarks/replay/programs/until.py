"""Trains a preset until its policy reaches a return: `python -m benchmarks.replay.programs.until JSON`.

Prints the env steps, and whether the goal was reached.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from typing import Any


def main() -> None:
    task: dict[str, Any] = json.loads(sys.argv[1])
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: task.pop("cores")])  # before TensorFlow counts them

    import actor_learner as al

    goal, evaluate = task.pop("goal"), al.callbacks.Evaluate(task.pop("every_steps"))
    stop = al.callbacks.StopOnReturn(goal, monitor="evaluation/return_mean")
    with tempfile.TemporaryDirectory() as folder:
        options = {**task, "run_dir": f"{folder}/run", "quiet": True, "callbacks": [evaluate, stop]}
        result = al.train(al.preset(options.pop("env"), **options))
    assert evaluate.evaluation is not None
    print(json.dumps({"env_steps": result.metrics["env_steps"], "reached": evaluate.evaluation.mean >= goal}))


if __name__ == "__main__":
    main()
