#!/usr/bin/env python3
"""Speed against Stable-Baselines3 and SBX (its JAX port), at equal hyperparameters and environments.

    scripts/compare_sb3.py --work cartpole cartpole-64 halfcheetah pong --rounds 3 --output benchmarks/compare_sb3.json

Each peer runs in a virtual environment of their own (`.venv-peers`, made on first use), at the better of
one and all threads, chosen by one run each. Then all alternate, round by round, and the medians of the
rounds' ratios are printed. A run's figure is env steps per second from the end of its first update to the
end of its last, so that imports and compilation don't count.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from machine import machine

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / ".venv-peers"
PACKAGES = [
    *("torch==2.13.0", "stable-baselines3==2.9.*", "sbx-rl==0.28.*", "gymnasium[mujoco]", "ale-py"),
    "opencv-python-headless",  # SB3's Atari wrappers
]

WORKS: dict[str, dict[str, Any]] = {
    # SB3's defaults: n_steps 2048, minibatch 64, 10 epochs.
    "cartpole": {"env": "CartPole-v1", "envs": 8, "unroll": 2048, "minibatch": 64, "epochs": 10, "updates": (3, 13)},
    "cartpole-64": {
        "env": "CartPole-v1",
        "envs": 64,
        "unroll": 32,
        "minibatch": 512,
        "epochs": 4,
        "updates": (60, 250),
    },
    "halfcheetah": {
        "env": "HalfCheetah-v5",
        "envs": 8,
        "unroll": 2048,
        "minibatch": 64,
        "epochs": 10,
        "updates": (3, 11),
    },
    # No sticky actions. SB3: its Atari wrappers and VecFrameStack. Ours: the vector environment of ale-py.
    "pong": {
        "env": "ALE/Pong-v5",
        "peer_env": "PongNoFrameskip-v4",
        "env_kwargs": {"repeat_action_probability": 0.0},
        "options": {"clip_reward": "sign", "ent_coef": 0.01},
        "peers": ["sb3"],
        "envs": 8,
        "unroll": 128,
        "minibatch": 256,
        "epochs": 4,
        "updates": (9, 17),
    },
}
"""`updates`: how many a peer makes, and how many ours; the first of each isn't counted."""


def main() -> None:
    """Measures, prints the table and writes it."""
    arguments = _parser().parse_args()
    _prepare_peers()
    result = {
        "date": datetime.date.today().isoformat(),
        "command": " ".join(["scripts/compare_sb3.py", *sys.argv[1:]]),
        "machine": machine(),
        "rounds": arguments.rounds,
        "works": {},
    }
    for name in arguments.work:
        result["works"][name] = compare(WORKS[name], arguments.rounds, arguments.vectorization)
        print(_table(name, result["works"][name]), flush=True)
        if arguments.output:
            Path(arguments.output).write_text(json.dumps(result, indent=2) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", nargs="+", choices=list(WORKS), default=list(WORKS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--vectorization", choices=["auto", "sync"], default="auto", help="of our environments")
    parser.add_argument("--output", help="JSON file for the figures")
    return parser


def compare(work: dict[str, Any], rounds: int, vectorization: str) -> dict[str, Any]:
    """Alternates the peers and ours on one work, and takes medians."""
    cores = len(os.sched_getaffinity(0))
    peers = work.get("peers", ["sb3", "sbx"])
    threads = {peer: max((1, cores), key=lambda count, peer=peer: run_peer(peer, work, count)) for peer in peers}
    runs: dict[str, list[float]] = {name: [] for name in (*peers, "lag 0", "lag 1")}
    shares: dict[str, dict[str, float]] = {}
    for _ in range(rounds):
        for peer, count in threads.items():
            runs[peer].append(run_peer(peer, work, count))
        for lag in (0, 1):
            speed, shares[f"lag {lag}"] = run_ours(work, lag, vectorization)
            runs[f"lag {lag}"].append(speed)
    ratios = {
        f"{ours} / {peer}": statistics.median(a / b for a, b in zip(runs[ours], runs[peer], strict=True))
        for ours in ("lag 0", "lag 1")
        for peer in peers
    }
    native = vectorization == "auto" and work["env"] in ("CartPole-v1", "ALE/Pong-v5")
    return {
        "work": work,
        "environments": {"ours": "native vector environment" if native else "SyncVectorEnv", "peers": "DummyVecEnv"},
        "threads": threads,
        "steps_per_second": runs,
        "ratios": ratios,
        "time": shares,
    }


def run_peer(peer: str, work: dict[str, Any], threads: int) -> float:
    """Steps per second of one run of SB3 or SBX in its own virtual environment."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    if threads == 1:
        environment["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    command = [PEERS / "bin/python", ROOT / "scripts/peer_sb3.py", peer, json.dumps(work), str(threads)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800, check=False)
    if done.returncode:
        sys.exit(f"{peer} failed:\n{done.stderr[-3000:]}")
    return float(done.stdout.split()[-1])


def run_ours(work: dict[str, Any], lag: int, vectorization: str) -> tuple[float, dict[str, float]]:
    """Steps per second of one run of `actor-learner train`, and the shares of time in its metrics."""
    steps = work["envs"] * work["unroll"] * work["updates"][1]
    with tempfile.TemporaryDirectory() as directory:
        command = [
            *(sys.executable, "-m", "actor_learner.cli", "train", work["env"], "--preset", "none", "--quiet"),
            *("--num-actors", 2, "--envs-per-actor", work["envs"] // 2, "--unroll-length", work["unroll"]),
            *("--minibatch-size", work["minibatch"], "--epochs", work["epochs"], "--total-steps", steps),
            *("--max-policy-lag", lag, "--vectorization", vectorization, "--run-dir", f"{directory}/run"),
            *("--env-kwargs", json.dumps(work.get("env_kwargs", {}))),
        ]
        for name, value in work.get("options", {}).items():
            command += [f"--{name.replace('_', '-')}", value]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=1800, check=False)
        if done.returncode:
            sys.exit(f"actor-learner failed:\n{done.stderr[-3000:]}")
        rows = [json.loads(line) for line in Path(directory, "run/metrics.jsonl").read_text().splitlines()]
    first, last = rows[0], rows[-1]
    speed = (last["env_steps"] - first["env_steps"]) / (last["time_seconds"] - first["time_seconds"])
    names = [name for name in last if name.startswith("time/")]
    return speed, {name.removeprefix("time/"): statistics.median(row[name] for row in rows[1:]) for name in names}


def _table(name: str, found: dict[str, Any]) -> str:
    """What was measured, in a few lines."""
    work = found["work"]
    lines = [
        f"\n{name}: {work['env']}, {work['envs']} envs x {work['unroll']} steps, minibatch {work['minibatch']}, "
        f"{work['epochs']} epochs; ours: {found['environments']['ours']}; threads of the peers: {found['threads']}"
    ]
    for label, speeds in found["steps_per_second"].items():
        rounds = ", ".join(f"{speed:,.0f}" for speed in speeds)
        lines.append(f"  {label:6} {statistics.median(speeds):>10,.0f} steps/s   ({rounds})")
    lines.append("  ratios: " + ", ".join(f"{label} {ratio:.1f}x" for label, ratio in found["ratios"].items()))
    for label, shares in found["time"].items():
        lines.append(
            f"  {label}: learning {shares['learning']:.0%} of the run's time; actors: "
            + ", ".join(f"{part} {shares[part]:.0%}" for part in ("env", "acting", "other", "waiting"))
        )
    return "\n".join(lines)


def _prepare_peers() -> None:
    if (PEERS / "bin/python").exists():
        return
    print(f"installing {', '.join(PACKAGES)} into {PEERS.name} ...", flush=True)
    subprocess.run([sys.executable, "-m", "venv", PEERS], check=True, timeout=300)
    for package in (PACKAGES[:1], PACKAGES[1:]):  # torch first, so that nothing takes another build of it
        subprocess.run([PEERS / "bin/pip", "install", "-q", *package], check=True, timeout=3600)


if __name__ == "__main__":
    main()
