"""The needs of acting with a trained policy: megabytes installed, seconds until the first action.

    scripts/measure policy --litert PYTHON --torch PYTHON --tensorflow PYTHON --output benchmarks/deploy/policy.json

Each PYTHON is an interpreter of an environment of its own: `pip install numpy ai-edge-litert` and
`pip install --no-deps actor-learner`; `pip install torch numpy`; this project. The time is that of a whole process that
takes one action, after a round that fills the file cache; the size is that of the packages and their dependencies.
"""

from __future__ import annotations

import functools
import json
import os
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

import actor_learner as al
from actor_learner.runs.directory import read_config
from benchmarks.harness import Figures, make_parser, medians, origin, report, run_in_turns, run_python, time_python

Array = np.ndarray[Any, Any]

ROOTS = {"litert": ["numpy", "ai-edge-litert"], "torch": ["torch", "numpy"], "tensorflow": ["tensorflow"]}

_SIZE = """
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

_TORCH = """
import sys
import torch
layers = [torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2)]
network = torch.nn.Sequential(*layers)
"""
_SAVE_TORCH = f"{_TORCH}torch.save(network.state_dict(), sys.argv[1])"
_ACT = {
    "litert": """
import sys
import actor_learner as al
print(al.load_policy(sys.argv[1]).act([0.01, 0.02, -0.03, 0.04]))
""",
    "torch": f"""{_TORCH}
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

_EXPORT = """
import sys
import actor_learner as al
config = al.TrainConfig(env="CartPole-v1", num_actors=0, total_steps=1, run_dir=f"{sys.argv[1]}/run", quiet=True)
run = al.train(config).run_dir
for kind, name in (("litert", "litert"), ("saved_model", "tensorflow")):
    al.export(run, f"{sys.argv[1]}/{name}", format=kind)
"""


def main() -> None:
    parser = make_parser("policy", __doc__ or "", rounds=10)
    for name in ROOTS:
        parser.add_argument(f"--{name}", required=True, metavar="PYTHON")
    arguments = parser.parse_args()
    pythons = {name: getattr(arguments, name) for name in ROOTS}
    with tempfile.TemporaryDirectory() as folder:
        run_program(pythons["tensorflow"], _EXPORT, folder)
        run_program(pythons["torch"], _SAVE_TORCH, f"{folder}/torch")
        act = {name: (python, _ACT[name], f"{folder}/{name}") for name, python in pythons.items()}
        runs = {name: functools.partial(time_program, *words) for name, words in act.items()}
        seconds = run_in_turns(runs, arguments.rounds + 1)
    result: Figures = {**origin(parser), "rounds": arguments.rounds}
    for name, python in pythons.items():
        result[name] = {**installed_size(python, ROOTS[name]), **medians(seconds[name][1:], digits=3)}
    report(result, arguments.output)


def installed_size(python: str, roots: list[str]) -> Figures:
    """Return the size and the number of packages, with their dependencies."""
    sizes = json.loads(run_program(python, _SIZE, json.dumps(roots)))
    return {"megabytes": round(sum(sizes.values()) / 1e6, 1), "packages": len(sizes)}


def time_program(python: str, program: str, *arguments: str) -> dict[str, float]:
    """Time a process that takes its first action, by the clock and of the processor."""
    words = ["-c", program, *arguments]
    seconds = time_python(words, python=python, environment={"PYTHONPATH": None})
    return {f"first_action_{name}": value for name, value in seconds.items()}


def run_program(python: str, program: str, *arguments: str) -> str:
    """Run a program by an interpreter, which imports only what is installed there; return what it prints."""
    return run_python(["-c", program, *arguments], python=python, environment={"PYTHONPATH": None})


ENVS, STEPS, ROUNDS = 8, 128, 5
ROUNDING = 1e-5  # two actions whose logits differ by no more are equally likely

_ACT_IN_PONG = """
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


def pong() -> None:
    """Compare an exported policy's actions in recorded Pong with Keras's, where only NumPy and LiteRT are installed.

        actor-learner train ALE/Pong-v5 --run-dir runs/pong
        scripts/measure pong-policy runs/pong --litert PYTHON [PYTHON ...] --output benchmarks/deploy/pong_policy.json

    Each PYTHON has `pip install numpy ai-edge-litert` and `pip install --no-deps` of this project, nothing else. The
    network and the exported policy choose the likeliest action for 1,032 observations of the run's environments,
    and the policy samples with the same seed here and there.
    """
    parser = make_parser("pong-policy", pong.__doc__ or "")
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
            found = json.loads(run_program(python, _ACT_IN_PONG, *files))
            seconds = [time_program(python, _FIRST_ACTION, *files) for _ in range(ROUNDS + 1)][1:]
            figures = {**installed_size(python, ROOTS["litert"]), **medians(seconds, digits=3)}
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
    env = read_config(run_dir)["env"]
    with al.ActorPool(env, network, num_actors=0, envs_per_actor=ENVS, unroll_length=STEPS, seed=7) as actors:
        observation = actors.collect(timeout=600).observation
        return np.array(observation).reshape(-1, *observation.shape[2:])


def compare(found: Figures, logits: Array, sampled: Array) -> Figures:
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
