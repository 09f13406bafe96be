"""Runs the measuring program of a topic; without arguments, lists the topics."""

from __future__ import annotations

import ast
import importlib
import sys
from importlib.util import find_spec
from pathlib import Path

from benchmarks.harness import RunFailedError

TOPICS = {
    "speed": "benchmarks.speed.speed",
    "roof": "benchmarks.speed.speed:roof",
    "startup": "benchmarks.speed.startup",
    "same-bytes": "benchmarks.speed.same_bytes",
    "actor": "benchmarks.speed.pool:actor",
    "acting": "benchmarks.speed.pool:acting",
    "peers": "benchmarks.peers.compare",
    "learning": "benchmarks.learning.table",
    "games": "benchmarks.games.games",
    "tag": "benchmarks.games.tag",
    "value": "benchmarks.games.value",
    "game-peers": "benchmarks.games.peers",
    "recurrent": "benchmarks.recurrent.compare",
    "replay": "benchmarks.replay.compare",
    "gradient-steps": "benchmarks.replay.steps",
    "resources": "benchmarks.replay.resources",
    "offline": "benchmarks.replay.offline",
    "scaling": "benchmarks.scaling.scaling",
    "figures": "benchmarks.figures",
    "device": "benchmarks.device.device",
    "gpu": "benchmarks.gpu.gpu",
    "gpu-pack": "benchmarks.gpu.pack",
    "memory": "benchmarks.overhead.memory",
    "soak": "benchmarks.faults.soak",
    "aborts": "benchmarks.faults.aborts",
    "kill-and-resume": "benchmarks.faults.kill_and_resume",
    "faulty-runs": "benchmarks.faults.faulty_runs",
    "cluster-faults": "benchmarks.cluster.faults",
    "cluster-soak": "benchmarks.cluster.soak",
    "cluster-bytes": "benchmarks.cluster.bytes_needed",
    "cluster-same-bytes": "benchmarks.cluster.same_bytes",
    "cluster-speed": "benchmarks.cluster.speed",
    "planted-faults": "benchmarks.suite.planted_faults",
    "policy": "benchmarks.deploy.policy",
    "pong-policy": "benchmarks.deploy.policy:pong",
    "three-commands": "benchmarks.pictures.three_commands",
    "live-view": "benchmarks.pictures.live_view",
}
"""The module of each topic, and its function where that isn't `main`."""

ARCHIVED = {
    "update": ("speed/update", "2026-11-22", "an update as one compiled graph, against its steps called from Python"),
    "precision": ("learning/precision", "2026-11-23", "16 bits in the hidden layers, and PPO's ratio"),
    "overhead": ("overhead/overhead", "2026-11-21", "the cost of the live view, TensorBoard's files and supervision"),
    "free-running": ("speed/pool", "2026-11-21", "throughput beside a slow actor; `scaling` has it for heavy tails"),
}
"""The answered questions whose programs are only in git's history: the module, the result's date, the question."""

LAST_COMMIT = "96efe57"  # that has them


def main() -> None:
    """Run the program of the first argument with the arguments after it."""
    words = sys.argv[1:]
    if not words or words[0] in ("-h", "--help"):
        print("usage: scripts/measure TOPIC [--help] ...\n")
        for topic in TOPICS:
            print(f"  {topic:16} {summary(topic)}")
        print("\nanswered, with the results kept, and the programs in git's history alone:\n")
        for topic in ARCHIVED:
            print(f"  {topic:16} {archive_note(topic)}")
        return
    topic, *rest = words
    if topic in ARCHIVED:
        sys.exit(f"scripts/measure: error: {topic} was answered: {archive_note(topic)}")
    if topic not in TOPICS:
        sys.exit(f"scripts/measure: error: unknown topic {topic!r}; scripts/measure without arguments lists them.")
    sys.argv = [f"scripts/measure {topic}", *rest]
    try:
        module, _, function = TOPICS[topic].partition(":")
        sys.exit(getattr(importlib.import_module(module), function or "main")())
    except RunFailedError as error:
        sys.exit(f"scripts/measure {topic}: error: {error}")


def archive_note(topic: str) -> str:
    """Return the question of an archived topic, its date, and the command that shows its program."""
    module, date, question = ARCHIVED[topic]
    folder = module.partition("/")[0]
    return f"{question} (benchmarks/{folder}/, {date}; git show {LAST_COMMIT}:benchmarks/{module}.py)"


def summary(topic: str) -> str:
    """Return the first line of a program's docstring, without importing its module."""
    module, _, function = TOPICS[topic].partition(":")
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    owners = [tree, *(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function)]
    return (ast.get_docstring(owners[-1]) or "").partition("\n")[0]


if __name__ == "__main__":
    main()
