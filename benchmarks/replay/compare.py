"""The cost of a gradient step of DQN and SAC, and of a whole run on CartPole: ours beside SB3 and SBX.

    scripts/measure replay --output benchmarks/replay/replay.json    # 25 minutes

One thread, CPU time, programs in turns; ratios are medians of the rounds' ratios. A gradient step's time includes
drawing its rows. SB3, SBX and torch are installed into a virtual environment of `--venvs` on first use.
"""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path

from benchmarks.harness import Found, in_turns, make_parser, origin, ratio_of, report, run_python
from benchmarks.peers.libraries import prepare, versions

DQN = {"algorithm": "dqn", "minibatch_size": 64, "steps": 128, "calls": 8, "observation": 4, "actions": 2}
SAC = {"algorithm": "sac", "minibatch_size": 256, "steps": 32, "calls": 6, "observation": 17, "actions": 6}
NATURE = {"algorithm": "dqn", "minibatch_size": 32, "steps": 16, "calls": 4, "observation": 0, "actions": 6}
STEPS = {
    "DQN 256-256, minibatch 64": {**DQN, "max_grad_norm": 10.0},
    "DQN without clipping": {**DQN, "max_grad_norm": None},
    "SAC 256-256, minibatch 256": SAC,
    "DQN, Nature CNN, minibatch 32": {**NATURE, "max_grad_norm": 10.0},
}
WHOLE = {"env_steps": 20_000}
PROGRAMS = "benchmarks.replay.programs"
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
ONE_THREAD = {
    **dict.fromkeys(THREADS, "1"),
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}


def main() -> None:
    parser = make_parser("replay", __doc__ or "", rounds=5)
    parser.add_argument("--venvs", type=Path, default=Path("venvs"), help="folder of virtual environments")
    arguments = parser.parse_args()
    python, rounds = str(prepare("sb3", arguments.venvs)), arguments.rounds
    found: Found = {"a gradient step": {name: step(python, task, rounds) for name, task in STEPS.items()}}
    found["CartPole, the whole command"] = compared(in_turns(programs(python, "whole", WHOLE, sbx=True), rounds))
    known = versions(Path(python), ("stable-baselines3", "sbx-rl", "torch", "jax"))
    report({**origin(parser), "rounds": rounds, "versions": known, **found}, arguments.output)


def programs(python: str, function: str, task: Found, *, sbx: bool) -> Found:
    """Return a function for each library that runs it in a process of its own."""
    ours = functools.partial(child, "ours", function, task)
    peers = [functools.partial(child, "peers", function, {**task, "library": name}, python) for name in ("sb3", "sbx")]
    return {"ours": ours, "SB3": peers[0], **({"SBX": peers[1]} if sbx else {})}


def child(program: str, function: str, task: Found, python: str = sys.executable) -> float:
    """Return the CPU seconds that a program prints, on one thread."""
    changes = ONE_THREAD if program == "peers" else dict.fromkeys(THREADS, "1")
    words = ["-m", f"{PROGRAMS}.{program}", function, json.dumps(task)]
    return float(json.loads(run_python(words, environment=changes, python=python)))


def step(python: str, task: Found, rounds: int) -> Found:
    """Return a gradient step's microseconds. SBX, which has no CNN here, is left out of images."""
    return compared(in_turns(programs(python, "step", task, sbx=bool(task["observation"])), rounds), 1e6)


def compared(found: dict[str, list[float]], unit: float = 1.0) -> Found:
    """Return the rounds' figures in a unit, and how many times ours goes into each peer's."""
    ratios = {f"{name} / ours": ratio_of(row, found["ours"])._asdict() for name, row in found.items() if name != "ours"}
    return {**{name: [round(unit * seconds, 3) for seconds in row] for name, row in found.items()}, **ratios}
