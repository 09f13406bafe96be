"""Compares an exported policy's actions in recorded Pong with Keras's, where only NumPy and LiteRT are installed.

    actor-learner train ALE/Pong-v5 --run-dir runs/pong
    scripts/measure pong-policy runs/pong --litert PYTHON [PYTHON ...] --output benchmarks/deploy/pong_policy.json

Each PYTHON has `pip install numpy ai-edge-litert` and `pip install --no-deps` of this project, nothing else. The
network and the exported policy choose the likeliest action for 1,032 observations of the run's environments,
and the policy samples with the same seed here and there.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

import actor_learner as al
from actor_learner.runs.directory import read_config
from benchmarks.deploy.policy import ROOTS, installed, run_program, time_program
from benchmarks.harness import Found, make_parser, medians, origin, report

ENVS, STEPS, ROUNDS = 8, 128, 5
ROUNDING = 1e-5  # two actions whose logits differ by no more are equally likely
Array = np.ndarray[Any, Any]

_ACT = """
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

_FIRST_ACTION = """
import sys
import numpy as np
import actor_learner as al
al.load_policy(sys.argv[1]).act(np.load(sys.argv[2], mmap_mode="r")[0])
"""


def main() -> None:
    parser = make_parser("pong-policy", __doc__ or "")
    parser.add_argument("run_dir")
    parser.add_argument("--litert", required=True, nargs="+", metavar="PYTHON")
    arguments = parser.parse_args()
    network = al.load_network(arguments.run_dir)
    with tempfile.TemporaryDirectory() as folder:
        policy = al.export(arguments.run_dir, Path(folder, "policy"))
        observations = record(arguments.run_dir, network)
        np.save(file := Path(folder, "observations.npy"), observations)
        logits = network.predict(observations, 256, verbose=0)[0]
        here = al.load_policy(policy, seed=3)
        here.act(observations)
        sampled, _ = here.step(observations)
        files = (str(policy), str(file))
        pythons = []
        for python in arguments.litert:
            found = json.loads(run_program(python, _ACT, *files))
            seconds = [time_program(python, _FIRST_ACTION, *files) for _ in range(ROUNDS + 1)][1:]
            figures = {**installed(python, ROOTS["litert"]), **medians(seconds, digits=3)}
            pythons.append({**compare(found, logits, sampled), **figures})
    result = {
        **origin(parser),
        "observations": list(observations.shape),
        "steps_trained": int(al.Learner.load(Path(arguments.run_dir, "checkpoints/final")).env_steps),
        "how_often_keras_chooses_each_action": np.bincount(logits.argmax(1), minlength=logits.shape[1]).tolist(),
        "pythons": pythons,
    }
    report(result, arguments.output)


def record(run_dir: str, network: Any) -> Array:
    """Return observations `[N, 4, 84, 84]` uint8 of the run's environment."""
    config = read_config(run_dir)
    with al.ActorPool(config["env"], network, num_actors=0, envs_per_actor=ENVS, unroll_length=STEPS, seed=7) as actors:
        observation = actors.collect(timeout=600).observation
        return np.array(observation).reshape(-1, *observation.shape[2:])


def compare(found: Found, logits: Array, sampled: Array) -> Found:
    """Count the actions that differ from Keras's, and those that are less likely."""
    likeliest = np.array(found["likeliest"])
    log_probs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    expected = np.take_along_axis(log_probs, np.array(found["sampled"])[:, None], 1)[:, 0]
    missing = logits.max(1) - np.take_along_axis(logits, likeliest[:, None], 1)[:, 0]
    return {
        **{name: found[name] for name in ("python", "numpy", "imported")},
        "actions": len(likeliest),
        "equal_to_keras": int((likeliest == logits.argmax(1)).sum()),
        "less_likely_than_keras": int((missing > ROUNDING).sum()),
        "one_by_one_equal_to_batch": found["one"] == found["likeliest"][: len(found["one"])],
        "samples_equal_to_here": int((np.array(found["sampled"]) == sampled).sum()),
        "largest_difference_of_log_probs_to_keras": float(np.abs(expected - found["log_prob"]).max()),
    }
