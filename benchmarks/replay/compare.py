"""The cost of a gradient step of DQN and SAC, and of a whole run on CartPole: ours beside SB3 and SBX.

    scripts/measure replay --output benchmarks/replay/replay.json    # 25 minutes

One thread, CPU time, programs in turns; ratios are medians of the rounds' ratios. A gradient step's time includes
drawing its rows. SB3, SBX and torch are installed into a virtual environment of `--venvs` on first use.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.harness import Figures, origin, report, run_in_turns
from benchmarks.one_thread import compare_figures, parse, program
from benchmarks.peers.libraries import versions

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
XLA_FLAGS = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


def main() -> None:
    parser, arguments, python = parse("replay", __doc__ or "")
    rounds = arguments.rounds
    found: Figures = {"a gradient step": {}}
    for name, task in STEPS.items():  # SBX has no CNN here
        found["a gradient step"][name] = compare(python, "step", task, rounds, sbx=bool(task["observation"]), unit=1e6)
    found["CartPole, the whole command"] = compare(python, "whole", WHOLE, rounds)
    known = versions(Path(python), ("stable-baselines3", "sbx-rl", "torch", "jax"))
    report({**origin(parser), "rounds": rounds, "versions": known, **found}, arguments.output)


def compare(python: str, function: str, task: Figures, rounds: int, *, sbx: bool = True, unit: float = 1.0) -> Figures:
    """Return the rounds' figures in a unit, and how many times ours goes into each peer's."""
    runs = {"ours": program("replay.programs.ours", function, task)}
    for library in ("sb3", "sbx") if sbx else ("sb3",):
        task = {**task, "library": library}
        runs[library.upper()] = program("replay.programs.peers", function, task, python, XLA_FLAGS=XLA_FLAGS)
    return compare_figures(run_in_turns(runs, rounds), [(name, "ours") for name in runs if name != "ours"], unit)
