"""The cost of a gradient step with quantiles, with hindsight, and of PQN: beside ours without them, and beside peers.

    scripts/measure gradient-steps --output benchmarks/replay/steps.json    # 25 minutes

One thread, CPU time, programs in turns; ratios are medians of the rounds' ratios. A gradient step's time includes
drawing its rows. Peers: sb3-contrib's QR-DQN, SBX's TQC, SB3's SAC with its HerReplayBuffer.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.harness import Figures, origin, report, run_in_turns
from benchmarks.one_thread import compare_figures, parse, program
from benchmarks.peers.libraries import versions
from benchmarks.replay.compare import SAC, XLA_FLAGS

OURS, PEERS = "replay.programs.ours", "replay.programs.peers"
QUANTILES = {
    "algorithm": "qrdqn",
    "minibatch_size": 128,
    "steps": 64,
    "calls": 6,
    "observation": 8,
    "actions": 4,
    "max_grad_norm": None,
}
TQC = {**SAC, "algorithm": "tqc"}
ON_POLICY = {"steps": 64, "columns": 32, "epochs": 4, "minibatch_size": 128, "observation": 8, "actions": 4, "calls": 8}
GOALS = {"observation": 10, "actions": 4, "steps": 32, "calls": 6, "minibatch_size": 256}
OWN = {
    "QR-DQN, 50 quantiles / DQN": (
        "step",
        {**QUANTILES, "options": {"quantiles": 50}},
        {**QUANTILES, "algorithm": "dqn"},
    ),
    "QR-DQN, 200 quantiles / DQN": (
        "step",
        {**QUANTILES, "options": {"quantiles": 200}},
        {**QUANTILES, "algorithm": "dqn"},
    ),
    "TQC / SAC": ("step", TQC, SAC),
    "PQN / PPO": ("on_policy_step", {**ON_POLICY, "algorithm": "pqn"}, {**ON_POLICY, "algorithm": "ppo"}),
    "drawing with hindsight / without": ("draw", {**GOALS, "hindsight": True}, {**GOALS, "hindsight": False}),
    "SAC with hindsight / without": ("goal_step", {**GOALS, "hindsight": True}, {**GOALS, "hindsight": False}),
}
BESIDE = {
    "QR-DQN, 50 quantiles": ("step", {**QUANTILES, "options": {"quantiles": 50}}, "sb3"),
    "TQC": ("step", TQC, "sbx"),
    "SAC with hindsight": ("goal_step", {**GOALS, "hindsight": True}, "sb3"),
}


def main() -> None:
    parser, arguments, python = parse("gradient-steps", __doc__ or "")
    found: Figures = {"own": {}, "peers": {}}
    for name, (function, task, base) in OWN.items():
        this, other = name.split(" / ")
        runs = {this: program(OURS, function, task), other: program(OURS, function, base)}
        found["own"][name] = compare_figures(run_in_turns(runs, arguments.rounds), [(this, other)], 1e6)
    for name, (function, task, library) in BESIDE.items():
        peer = program(PEERS, function, {**task, "library": library}, python, XLA_FLAGS=XLA_FLAGS)
        runs = {"ours": program(OURS, function, task), library: peer}
        found["peers"][name] = compare_figures(run_in_turns(runs, arguments.rounds), [(library, "ours")], 1e6)
    known = versions(Path(python), ("stable-baselines3", "sb3-contrib", "sbx-rl", "torch", "jax"))
    report({**origin(parser), "rounds": arguments.rounds, "versions": known, **found}, arguments.output)


if __name__ == "__main__":
    main()
