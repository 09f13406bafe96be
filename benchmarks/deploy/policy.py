#!/usr/bin/env python3
"""What it takes to act with a trained policy: megabytes installed, seconds until the first action.

    scripts/measure policy --litert PYTHON --torch PYTHON --tensorflow PYTHON [--output benchmarks/deploy/policy.json]

Each PYTHON is an interpreter of an environment of its own. That of LiteRT holds nothing but
`pip install numpy ai-edge-litert` and `pip install --no-deps actor-learner`, that of torch `pip install torch numpy`,
that of TensorFlow this project. All act with the same network, of two times 64 tanh units for CartPole. The time is
a whole process's: interpreter, imports, reading the policy, one action; medians of alternated rounds, after one that
fills the file cache; by the clock and, for machines that others use too, the processor's. The size is that of the
packages and all that they need, as pip installed them.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from benchmarks.harness import machine

Seconds = dict[str, list[tuple[float, float]]]

ROOTS = {"litert": ["numpy", "ai-edge-litert"], "torch": ["torch", "numpy"], "tensorflow": ["tensorflow"]}

SIZE = """
import importlib.metadata, json, re, sys
def name_of(text): return re.sub(r"[-_.]+", "-", re.match(r"[\\w.-]+", text)[0]).lower()
pending, sizes = json.loads(sys.argv[1]), {}
while pending:
    name = name_of(pending.pop())
    if name in sizes: continue
    try: distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError: continue
    sizes[name] = sum(file.locate().stat().st_size for file in distribution.files or () if file.locate().is_file())
    pending += [text for text in distribution.requires or () if "extra ==" not in text]
print(json.dumps(sizes))
"""

ACT = {
    "litert": """
import sys
import actor_learner as al
print(al.load_policy(sys.argv[1]).act([0.01, 0.02, -0.03, 0.04]))
""",
    "torch": """
import sys
import torch
layers = [torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2)]
network = torch.nn.Sequential(*layers)
network.load_state_dict(torch.load(sys.argv[1], weights_only=True))
with torch.no_grad():
    print(int(network(torch.tensor([[0.01, 0.02, -0.03, 0.04]])).argmax()))
""",
    "tensorflow": """
import sys
import numpy as np
import tensorflow as tf
act = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
print(int(act(observation=tf.constant([[0.01, 0.02, -0.03, 0.04]]))["action"][0]))
""",
}

EXPORT = """
import sys
import gymnasium as gym
from pathlib import Path
import actor_learner as al
from actor_learner.policy.export.litert import export_policy
from actor_learner.runs.directory import begin_run, claim_run
from actor_learner.networks.saving import save_network
space = gym.make("CartPole-v1")
network = al.default_network(space.observation_space, space.action_space)
run = claim_run(al.TrainConfig(run_dir=Path(sys.argv[1]) / "run"))
begin_run(run, al.TrainConfig(run_dir=run.path))
save_network(network, run.path)
export_policy(network, space.action_space, 1, space.observation_space, masked=True).save(run.policy)
for kind, name in (("litert", "litert"), ("saved_model", "tensorflow")):
    al.export(run.path, Path(sys.argv[1]) / name, format=kind)
"""

SAVE_TORCH = """
import sys
import torch
layers = [torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2)]
torch.save(torch.nn.Sequential(*layers).state_dict(), sys.argv[1])
"""


def main() -> None:
    """Measures, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ROOTS:
        parser.add_argument(f"--{name}", required=True, metavar="PYTHON")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    pythons = {name: getattr(arguments, name) for name in ROOTS}
    with tempfile.TemporaryDirectory() as folder:
        policies = {name: f"{folder}/{name}" for name in ROOTS}
        run(pythons["tensorflow"], EXPORT, folder)
        run(pythons["torch"], SAVE_TORCH, policies["torch"])
        seconds = start_up_seconds(pythons, policies, arguments.rounds)
    result: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "rounds": arguments.rounds,
    }
    for name, python in pythons.items():
        sizes = json.loads(run(python, SIZE, json.dumps(ROOTS[name])))
        result[name] = {
            "megabytes": round(sum(sizes.values()) / 1e6, 1),
            "packages": len(sizes),
            "first_action_seconds": round(statistics.median(clock for clock, _ in seconds[name]), 3),
            "first_action_cpu_seconds": round(statistics.median(used for _, used in seconds[name]), 3),
        }
    print(json.dumps(result, indent=2))
    if arguments.output:
        arguments.output.write_text(json.dumps(result, indent=2) + "\n")


def start_up_seconds(
    pythons: dict[str, str], policies: dict[str, str], rounds: int
) -> dict[str, list[tuple[float, float]]]:
    """Of each round, by the clock and by the processor."""
    seconds: Seconds = {name: [] for name in pythons}
    for number in range(rounds + 1):
        for name, python in pythons.items():
            started, before = time.perf_counter(), os.times()
            run(python, ACT[name], policies[name])
            after = os.times()
            used = after.children_user + after.children_system - before.children_user - before.children_system
            if number:
                seconds[name].append((time.perf_counter() - started, used))
    return seconds


def run(python: str, program: str, *arguments: str) -> str:
    """What a program prints."""
    command = [python, "-P", "-c", program, *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL).stdout


if __name__ == "__main__":
    main()
