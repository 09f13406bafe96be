#!/usr/bin/env python3
"""Plays recorded Pong with an exported policy where there is NumPy and LiteRT alone; are its actions Keras's?

    actor-learner train ALE/Pong-v5 --run-dir runs/pong
    scripts/measure pong-policy runs/pong --litert PYTHON [PYTHON ...] [--output benchmarks/deploy/pong_policy.json]

Each PYTHON is that of an environment which holds `pip install numpy ai-edge-litert` and `pip install --no-deps` of
this project, nothing else. 1,032 observations that the run's environments give, by sampled actions, are kept as .npy;
the network and the policy exported to LiteRT choose the likeliest action for each, and the policy a sample with the
same seed here and there. Beside that: what is installed, and the processor's seconds from starting Python to the
first action. It takes half a minute, and ten seconds more for each PYTHON.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

import actor_learner as al
from actor_learner.runs.directory import read_config
from benchmarks.deploy.policy import ROOTS, SIZE, run
from benchmarks.harness import machine

ENVS, STEPS = 8, 128
ROUNDS = 5
ROUNDING = 1e-5
"""Of logits: two actions that differ by no more are as likely."""

ACT = """
import json, sys
import numpy as np
import actor_learner as al
policy, observations = al.load_policy(sys.argv[1], seed=3), np.load(sys.argv[2])
one = [int(policy.act(observation)) for observation in observations[:64]]
likeliest, (sampled, log_prob) = policy.act(observations), policy.step(observations)
others = {name.partition(".")[0] for name in sys.modules} & {"gymnasium", "cloudpickle", "keras", "tensorflow", "torch"}
print(json.dumps({"python": sys.version.split()[0], "numpy": np.__version__, "one": one, "imported": sorted(others),
                  "likeliest": likeliest.tolist(), "sampled": sampled.tolist(), "log_prob": log_prob.tolist()}))
"""

FIRST_ACTION = """
import os, sys
import numpy as np
import actor_learner as al
al.load_policy(sys.argv[1]).act(np.load(sys.argv[2], mmap_mode="r")[0])
times = os.times()
print(times.user + times.system)
"""


def main() -> None:
    """Records, exports, compares, writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run_dir")
    parser.add_argument("--litert", required=True, nargs="+", metavar="PYTHON")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    network = al.load_network(arguments.run_dir)
    result: dict[str, Any] = {"date": datetime.date.today().isoformat(), "machine": machine()}
    with tempfile.TemporaryDirectory() as folder:
        policy = al.export(arguments.run_dir, Path(folder, "policy"))
        observations = record(arguments.run_dir, network)
        np.save(file := Path(folder, "observations.npy"), observations)
        logits = network.predict(observations, 256, verbose=0)[0]
        here = al.load_policy(policy, seed=3)
        here.act(observations)
        sampled, _ = here.step(observations)
        kinds = np.bincount(logits.argmax(1), minlength=logits.shape[1]).tolist()
        result |= {"observations": list(observations.shape), "steps_trained": steps(arguments.run_dir)}
        result |= {"how_often_keras_chooses_each_action": kinds, "pythons": []}
        for python in arguments.litert:
            said = json.loads(run(python, ACT, str(policy), str(file)))
            result["pythons"].append(compare(said, logits, sampled) | measure(python, str(policy), str(file)))
    print(json.dumps(result, indent=2))
    if arguments.output:
        arguments.output.write_text(json.dumps(result, indent=2) + "\n")


def record(run_dir: str, network: Any) -> np.ndarray[Any, Any]:
    """Observations `[N, 4, 84, 84]` uint8 from the run's environment."""
    config = read_config(run_dir)
    with al.ActorPool(config["env"], network, num_actors=0, envs_per_actor=ENVS, unroll_length=STEPS, seed=7) as actors:
        observation = actors.collect(timeout=600).observation
        return np.array(observation).reshape(-1, *observation.shape[2:])


def steps(run_dir: str) -> int:
    """Env steps that the run took."""
    return int(al.Learner.load(Path(run_dir, "checkpoints/final")).env_steps)


def compare(said: dict[str, Any], logits: np.ndarray[Any, Any], sampled: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Where the actions differ from Keras's, and where they are no less likely."""
    likeliest = np.array(said["likeliest"])
    log_probs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    expected = np.take_along_axis(log_probs, np.array(said["sampled"])[:, None], 1)[:, 0]
    missing = logits.max(1) - np.take_along_axis(logits, likeliest[:, None], 1)[:, 0]
    return {
        **{name: said[name] for name in ("python", "numpy", "imported")},
        "actions": len(likeliest),
        "equal_to_keras": int((likeliest == logits.argmax(1)).sum()),
        "less_likely_than_keras": int((missing > ROUNDING).sum()),
        "one_by_one_equal_to_batch": said["one"] == said["likeliest"][: len(said["one"])],
        "samples_equal_to_here": int((np.array(said["sampled"]) == sampled).sum()),
        "largest_difference_of_log_probs_to_keras": float(np.abs(expected - said["log_prob"]).max()),
    }


def measure(python: str, *files: str) -> dict[str, Any]:
    """Megabytes, packages and seconds."""
    sizes = json.loads(run(python, SIZE, json.dumps(ROOTS["litert"])))
    seconds = [float(run(python, FIRST_ACTION, *files)) for _ in range(ROUNDS + 1)][1:]
    return {
        "megabytes": round(sum(sizes.values()) / 1e6, 1),
        "packages": len(sizes),
        "first_action_cpu_seconds": round(statistics.median(seconds), 3),
    }


if __name__ == "__main__":
    main()
