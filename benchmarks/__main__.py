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
    "startup": "benchmarks.speed.startup",
    "same-bytes": "benchmarks.speed.same_bytes",
    "peers": "benchmarks.peers.compare",
    "learning": "benchmarks.learning.table",
    "games": "benchmarks.games.games",
    "resources": "benchmarks.replay.resources",
    "offline": "benchmarks.replay.offline",
    "scaling": "benchmarks.scaling.scaling",
    "figures": "benchmarks.figures",
    "device": "benchmarks.device.device",
    "gpu": "benchmarks.gpu.gpu",
    "gpu-pack": "benchmarks.gpu.pack",
    "soak": "benchmarks.faults.soak",
    "kill-and-resume": "benchmarks.faults.kill_and_resume",
    "cluster-faults": "benchmarks.cluster.faults",
    "cluster-soak": "benchmarks.cluster.soak",
    "cluster-same-bytes": "benchmarks.cluster.same_bytes",
    "cluster-speed": "benchmarks.cluster.speed",
    "planted-faults": "benchmarks.suite.planted_faults",
}
"""The module of each topic."""

ARCHIVED = {
    "update": ("update", "96efe57:speed/update", "an update as one compiled graph, or as steps called from Python"),
    "precision": ("precision", "96efe57:learning/precision", "16 bits in the hidden layers, and PPO's ratio"),
    "overhead": ("view", "96efe57:overhead/overhead", "the cost of the live view, TensorBoard's files and supervision"),
    "free-running": ("free_running", "96efe57:speed/pool", "throughput beside a slow actor; `scaling` has heavy tails"),
    "roof": ("roof", "0c6d3ab:speed/speed", "the works beside their roofs; `actor-learner benchmark` measures one"),
    "reference-loop": ("reference_loop", "0c6d3ab:speed/reference_loop", "CartPole beside a loop in TensorFlow"),
    "actor": ("actor", "0c6d3ab:speed/pool", "one actor: memory, a vector step, a new weight version"),
    "acting": ("acting", "0c6d3ab:speed/pool", "acting on the actors' cores and on the learner's device"),
    "memory": ("memory", "0c6d3ab:overhead/memory", "the memory of learner and actors over time"),
    "recurrent": ("recurrent", "0c6d3ab:recurrent/compare", "memory: a run, an update, acting; beside SB3"),
    "replay": ("replay", "0c6d3ab:replay/compare", "a gradient step of DQN and SAC, beside SB3 and SBX"),
    "gradient-steps": ("gradient_steps", "0c6d3ab:replay/steps", "a step with quantiles, hindsight, and of PQN"),
    "policy": ("policy", "0c6d3ab:deploy/policy", "what acting needs: packages, megabytes, seconds"),
    "pong-policy": ("pong_policy", "0c6d3ab:deploy/policy", "a policy of Pong without TensorFlow, on three Pythons"),
    "tag": ("tag", "0c6d3ab:games/tag", "two roles of simple_tag, each seed and version against each other"),
    "value": ("value", "0c6d3ab:games/value", "agents that share a game, with and without a centralized value"),
    "game-peers": ("game_peers", "0c6d3ab:games/peers", "games beside SB3 and RLlib; exploitability on Leduc hold'em"),
    "cluster-bytes": ("bytes_needed", "0c6d3ab:cluster/bytes_needed", "bytes that cross the network for an env step"),
    "aborts": ("aborts", "0c6d3ab:faults/aborts", "runs under allocators that notice damaged memory: no event in 165"),
    "faulty-runs": ("faulty_halfcheetah", "0c6d3ab:faults/faulty_runs", "learning while actors are killed and stopped"),
    "soak-learner": ("soak_learner", "0c6d3ab:faults/soak_learner", "what a learner that is killed leaves behind"),
    "solve": ("solve", "0c6d3ab:peers/compare", "seconds to a return of 475 on CartPole, beside peers' own settings"),
    "three-commands": ("three_commands", "0c6d3ab:pictures/three_commands", "the pictures of the terminal in docs/"),
}
"""The answered questions: the result in archive/, the commit and the module of the program, and the question."""


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
        sys.exit(importlib.import_module(TOPICS[topic]).main())
    except RunFailedError as error:
        sys.exit(f"scripts/measure {topic}: error: {error}")


def archive_note(topic: str) -> str:
    """Return the question of an archived topic, its result, and the command that shows its program."""
    result, program, question = ARCHIVED[topic]
    return f"{question} (benchmarks/archive/{result}.json; git show {program.replace(':', ':benchmarks/')}.py)"


def summary(topic: str) -> str:
    """Return the first line of a program's docstring, without importing its module."""
    spec = find_spec(TOPICS[topic])
    assert spec is not None
    assert spec.origin is not None
    return (ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or "").partition("\n")[0]


if __name__ == "__main__":
    main()
