"""Compares games with other libraries: their policies and speeds; and the exploitability of ours on Leduc hold'em.

    scripts/measure game-peers --task connect_four --seeds 0 --output benchmarks/games/peers.json          # 50 minutes
    scripts/measure game-peers --task simple_spread --output benchmarks/games/peers.json                   # 12 minutes
    scripts/measure game-peers --task knights --output benchmarks/games/peers.json                         # 20 minutes
    scripts/measure game-peers --task leduc --output benchmarks/games/peers.json                           # 25 minutes
    scripts/measure game-peers --speed --output benchmarks/games/peers_speed.json                          # 70 minutes

A row that the file has is left out, and a peer's policy that was trained before is used again. The virtual
environments of the peers are made on first use. Speeds are in decisions that are learned from per second of the whole
run, after two updates, in turns; `ratios` are ours by the peer's, round by round.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import json
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

import actor_learner as al
from benchmarks.games import leduc_runs, peer_players, peer_runs
from benchmarks.games.peer_runs import CONNECT_FOUR, PROGRAMS_OF, STEPS, Program, run_program
from benchmarks.games.programs.agents import judge
from benchmarks.harness import Figures, origin, ratio_of, run_in_turns, tell, write

ARENA_GAMES, JUDGED_GAMES = 400, 200
LEARNING_SECONDS = 7200.0
SPEED_SECONDS = 300.0  # for a run, with its start
ARENA = "arena"  # the row of the games between the policies of a seed


def main() -> None:
    parser = _parser()
    arguments = parser.parse_args()
    if arguments.speed:
        found = measure_speeds(arguments)
        print(json.dumps(found, indent=1))
        write({**origin(parser), "tasks": found}, arguments.output)
        return
    exists = arguments.output is not None and arguments.output.exists()
    tasks: Figures = json.loads(arguments.output.read_text())["tasks"] if exists else {}
    rows = tasks.setdefault(arguments.task, [])
    for seed in arguments.seeds:
        for name in arguments.names or LEARNING[arguments.task]:
            if any((row["seed"], row["name"]) == (seed, name) for row in rows):
                continue
            measured = LEARNING[arguments.task][name](arguments, seed)
            rows.append({"name": name, "seed": seed, **measured})
            print(json.dumps(rows[-1]), flush=True)
            write({**origin(parser), "tasks": tasks}, arguments.output)


def _parser() -> argparse.ArgumentParser:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("scripts/measure game-peers", description=inspect.cleandoc(__doc__ or ""))
    parser.formatter_class = form
    parser.add_argument("--task", choices=LEARNING, default="connect_four")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--names", nargs="+", help="rows to measure; default: all of the task")
    parser.add_argument("--runs", type=Path, default=Path("runs/peers"), help="folder of the runs")
    parser.add_argument("--venvs", type=Path, default=Path(".venv-peers"), help="folder of the virtual environments")
    parser.add_argument("--speed", action="store_true", help="measure speeds instead, of all tasks or of --tasks")
    parser.add_argument("--tasks", nargs="+", choices=PROGRAMS_OF, default=list(PROGRAMS_OF))
    parser.add_argument("--rounds", type=int, default=5, help="how often each speed is measured")
    parser.add_argument("--seconds", type=float, default=30.0, help="seconds of each measurement")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    return parser


def connect_four(changes: Figures, folder: str, arguments: argparse.Namespace, seed: int) -> Figures:
    """Train ours by its preset with changes."""
    run = arguments.runs / f"connect_four-{folder}-{seed}"
    return _train_ours(al.preset(CONNECT_FOUR, seed=seed, run_dir=run, quiet=True, **changes), run)


def connect_four_peer(program: str, decisions: int, arguments: argparse.Namespace, seed: int) -> Figures:
    """Train a peer's policy, unless there is one."""
    folder = arguments.runs / f"connect_four-{program}-{decisions}-{seed}"
    if not (folder / "done").exists():
        fields = {"seed": seed, "steps": decisions, "workers": 0}
        ran = Program(PROGRAMS_OF["connect_four"][program].script, f"games_{program}")
        run_program(ran, arguments.venvs, folder, LEARNING_SECONDS, **fields)
        (folder / "done").touch()
    ticks = [json.loads(line) for line in (folder / "clock").read_text().splitlines()]
    more = json.loads((folder / "found.json").read_text()) if (folder / "found.json").exists() else {}
    return {"decisions": ticks[-1][1], **more}


def connect_four_arena(arguments: argparse.Namespace, seed: int) -> Figures:
    """Let the policies of a seed play against each other, the random player and minimax."""
    runs = {name: arguments.runs / f"connect_four-{folder}-{seed}" for name, (folder, _) in CONNECT_FOUR_OURS.items()}
    for other in arguments.seeds:
        if other != seed:
            runs[f"ours, small batches, seed {other}"] = arguments.runs / f"connect_four-small-{other}"
    players: Figures = {name: run for name, run in runs.items() if run.exists()}
    for name, program, decisions in CONNECT_FOUR_PEERS:
        weights = arguments.runs / f"connect_four-{program}-{decisions}-{seed}" / "weights.npz"
        if weights.exists():
            players[name] = getattr(peer_players, program)(weights)
    players |= {"random": "random", "minimax, 2 plies": "benchmarks.games.players:minimax2"}
    standings = al.arena(players, CONNECT_FOUR, games=ARENA_GAMES, seed=12345)
    tell(str(standings))
    return {"games": ARENA_GAMES, **_rounded(standings.to_json())}


def _rounded(standings: Figures) -> Figures:
    """Return the ratings and scores of standings, with few digits."""
    return {
        "names": standings["names"],
        "ratings": [round(rating) for rating in standings["ratings"]],
        "intervals": [[round(end) for end in interval] for interval in standings["intervals"]],
        "scores": [[score and round(score, 4) for score in row] for row in standings["scores"]],
    }


def agents(task: str, arguments: argparse.Namespace, seed: int) -> Figures:
    """Train ours, with the words that the speeds are measured with, and judge it."""
    folder = arguments.runs / f"{task}-ours-{seed}"
    config = al.TrainConfig.from_fields({**peer_runs.OURS[task], "algorithm": "ppo"})
    config = config.replace(seed=seed, run_dir=folder, total_steps=STEPS[task], quiet=True)
    trained = _train_ours(config, folder)
    policy = al.load_policy(folder)
    policy.reseed(seed)
    ways = {"greedy": True, "sampled": False}
    acts = {way: functools.partial(policy.act, deterministic=greedy) for way, greedy in ways.items()}
    return {**trained, "return": {way: judge(task, act, JUDGED_GAMES) for way, act in acts.items()}}


def agents_peer(task: str, arguments: argparse.Namespace, seed: int) -> Figures:
    """Train SB3's policy, which its program judges in the same way."""
    folder, program = arguments.runs / f"{task}-sb3-{seed}", PROGRAMS_OF[task]["sb3"]
    fields = {"seed": seed, "steps": STEPS[task], "judged": JUDGED_GAMES}
    run_program(program, arguments.venvs, folder, LEARNING_SECONDS, **fields)
    return dict(json.loads((folder / "found.json").read_text()))


def leduc(rule: str, arguments: argparse.Namespace, seed: int) -> Figures:
    return leduc_runs.measure_leduc(rule, seed, arguments.runs)


def _train_ours(config: al.TrainConfig, folder: Path) -> Figures:
    al.train(config, resume=(folder / "config.json").exists())
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    return {"decisions": last["env_steps"]}


SMALL_BATCHES = {"total_steps": 171_000, "num_envs": 32, "unroll_length": 32, "minibatch_size": 128, "epochs": 8}
"""A gradient step for each 16 decisions, where our preset has one for each 128, and RLlib's example for each 6."""
CONNECT_FOUR_OURS: dict[str, tuple[str, Figures]] = {
    "ours": ("ours", {"total_steps": peer_runs.CONNECT_FOUR_DECISIONS}),
    "ours, small batches": ("small", SMALL_BATCHES),
    "ours, small batches, every seat learns": ("seats", {**SMALL_BATCHES, "self_play": None}),
    "ours, 2 million": ("preset", {}),
}
"""Ours with as many decisions as the peers, by the preset and by batches for so few; and the whole preset."""
CONNECT_FOUR_PEERS = (
    ("sb3, tutorial", "sb3", peer_runs.TUTORIAL_DECISIONS),
    ("sb3", "sb3", peer_runs.CONNECT_FOUR_DECISIONS),
    ("rllib", "rllib", peer_runs.CONNECT_FOUR_DECISIONS),
)
Measure = Callable[[argparse.Namespace, int], Figures]
LEARNING: dict[str, dict[str, Measure]] = {
    "connect_four": {
        **{
            name: functools.partial(connect_four, changes, folder)
            for name, (folder, changes) in CONNECT_FOUR_OURS.items()
        },
        **{
            name: functools.partial(connect_four_peer, program, decisions)
            for name, program, decisions in CONNECT_FOUR_PEERS
        },
        ARENA: connect_four_arena,
    },
    **{
        task: {"ours": functools.partial(agents, task), "sb3": functools.partial(agents_peer, task)}
        for task in ("simple_spread", "knights")
    },
    "leduc": {rule: functools.partial(leduc, rule) for rule in leduc_runs.POOLS},
}
"""Of each task, the rows of a seed."""


def measure_speeds(arguments: argparse.Namespace) -> Figures:
    """Return each task's speeds in all rounds, their medians, and ours by each peer's."""
    found: Figures = {}
    for task in arguments.tasks:
        tell(task)
        programs = {name: PROGRAMS_OF[task][name] for name in arguments.names or PROGRAMS_OF[task]}
        runs = {name: functools.partial(speed, program, arguments) for name, program in programs.items()}
        speeds = run_in_turns(runs, arguments.rounds)
        ratios = {
            name: ratio_of(speeds["ours"], others)._asdict()
            for name, others in speeds.items()
            if not name.startswith("ours")
        }
        medians = {name: round(statistics.median(values), 1) for name, values in speeds.items()}
        found[task] = {"medians": medians, "ratios": ratios, "speeds": speeds, "notes": _notes(task)}
    return found


def speed(program: Program, arguments: argparse.Namespace) -> float:
    """Return the decisions per second of one run, without its first two updates."""
    with tempfile.TemporaryDirectory(prefix="game-", ignore_cleanup_errors=True) as folder:
        ticks = run_program(program, arguments.venvs, Path(folder), SPEED_SECONDS, seconds=arguments.seconds)
    (start, before, _), (end, after, _) = ticks[peer_runs.WARM_UP - 1], ticks[-1]
    return (after - before) / (end - start)


def _notes(task: str) -> dict[str, str]:
    return {name: program.note for name, program in PROGRAMS_OF[task].items() if program.note}


if __name__ == "__main__":
    main()
