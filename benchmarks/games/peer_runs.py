"""The compared runs of games: how each library trains, with the same hyperparameters where they mean the same."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.games.programs.agents import KNIGHTS, SPREAD
from benchmarks.harness import Figures, RunFailedError, child_environment
from benchmarks.peers.libraries import last_line, prepare
from benchmarks.processes import Child

PROGRAMS = Path(__file__).parent / "programs"
WARM_UP = 2  # updates that aren't counted: everything is compiled by then
CONNECT_FOUR = "pettingzoo:classic/connect_four-v3"
CONNECT_FOUR_DECISIONS, TUTORIAL_DECISIONS = 200_000, 20_480

_TORCH = ("torch==2.13.0",)
_SB3 = ("stable-baselines3==2.9.*", "sb3-contrib==2.9.*", "supersuit>=3.11")
_GAMES = ("pettingzoo[butterfly,classic]==1.27.*", "mpe2==1.1.*")
VENVS: dict[str, tuple[tuple[str, ...], ...]] = {
    "games_sb3": (_TORCH, (*_SB3, *_GAMES)),
    "games_rllib": (_TORCH, ("ray[rllib]==2.60.*", "open_spiel")),
}
"""The packages of each, in successive calls of pip."""


@dataclass(frozen=True)
class Program:
    """A program in programs/, run by the interpreter of `venv` (None: ours), with the fields of its task."""

    script: str
    venv: str | None = None
    task: Figures = field(default_factory=dict)
    note: str = ""


OURS: dict[str, Figures] = {
    "simple_spread": {
        "env": "mpe2.simple_spread_v3:parallel_env",
        "env_kwargs": SPREAD,
        "num_envs": 96,  # 32 games
        "unroll_length": 25,
        "learning_rate": "linear_7e-4",
        "gamma": 0.9,
        "epochs": 8,
        "minibatch_size": 600,
        "normalize_reward": True,
    },
    "knights": {
        "env": "pettingzoo.butterfly.knights_archers_zombies_v11:parallel_env",
        "env_kwargs": KNIGHTS,
        "num_envs": 32,  # 8 games
        "unroll_length": 2048,
        "max_policy_lag": 0,  # as SB3; for nine updates
        "gamma": 0.95,  # not SB3's 0.99: here, a game that is cut off after 100 steps has a value beyond them
        "epochs": 10,
        "minibatch_size": 256,
    },
}
"""The fields of our runs with agents that share a policy; the others are defaults, which SB3 has too."""
_SB3_ALONE: dict[str, Figures] = {
    "simple_spread": {"games": 32, "learning_rate": 7e-4, "linear": True, "normalize_reward": True},
    "knights": {"games": 8, "gamma": 0.99, "learning_rate": 3e-4, "linear": False, "black_death": True},
}
_SB3_NAMES = {"unroll_length": "n_steps", "minibatch_size": "batch_size", "epochs": "n_epochs", "gamma": "gamma"}


def _words(fields: Figures) -> list[str]:
    """Return the words after `actor-learner train` for fields, of which the first is the game."""
    env, *flags = fields.items()
    words = [str(env[1])]
    for name, value in flags:
        words.append(f"--{name.replace('_', '-')}")
        if value is not True:
            words.append(value if isinstance(value, str) else json.dumps(value))
    return words


def _shared(game: str) -> dict[str, Program]:
    """Return the programs for agents that share a policy."""
    task = {"game": game, "ent_coef": 0.0, "judged": 0, "normalize_reward": False, "black_death": False}
    task |= {theirs: OURS[game][name] for name, theirs in _SB3_NAMES.items()}
    task |= _SB3_ALONE[game]
    return {
        "ours": Program("ours", task={"words": _words(OURS[game])}),
        "sb3": Program("sb3_agents", "games_sb3", task, "SuperSuit, num_cpus=0"),
        "sb3, 2 threads": Program("sb3_agents", "games_sb3", {**task, "threads": 2}),
    }


PROGRAMS_OF: dict[str, dict[str, Program]] = {
    "connect_four": {
        "ours": Program("ours", task={"words": [CONNECT_FOUR]}, note="self-play; one seat learns"),
        "ours, every seat learns": Program("ours", task={"words": [CONNECT_FOUR, "--self-play", "none"]}),
        "sb3": Program("sb3_connect_four", "games_sb3", note="PettingZoo's tutorial; every seat learns"),
        "rllib": Program("rllib_connect_four", "games_rllib", {"workers": 2}, "its example, with 2 env runners"),
        "sb3, 2 threads": Program("sb3_connect_four", "games_sb3", {"threads": 2}),
        "PettingZoo alone": Program("alone", None, {"game": "pettingzoo"}, "at random; both seats' decisions"),
        "OpenSpiel alone": Program("alone", "games_rllib", {"game": "open_spiel"}, "at random; both seats' decisions"),
        "rllib, local": Program("rllib_connect_four", "games_rllib", {"workers": 0}, "its example, no env runners"),
    },
    **{game: _shared(game) for game in OURS},
}
STEPS = {"simple_spread": 480_000, "knights": 524_288}
"""Decisions of all agents in a learning run."""


def run_program(program: Program, venvs: Path, folder: Path, deadline: float, **task: Any) -> list[Sequence[Any]]:
    """Run a program to its end and return its ticks. Raises RunFailedError; none of its processes stays.

    deadline: seconds that it may take. task: further fields; the program writes its results into their `folder`.
    """
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    clock = folder / "clock"
    clock.write_text("")
    fields = {"warm_up": WARM_UP, "goal": None, "threads": 1, "seed": 0, "steps": 10**8, "seconds": 1e9}
    fields |= {**program.task, **task, "clock": str(clock), "folder": str(folder)}
    python = _python(program, venvs)
    command = [python, "-P", PROGRAMS / f"{program.script}.py", json.dumps(fields)]
    changes = {"OMP_NUM_THREADS": str(fields["threads"]), "SDL_VIDEODRIVER": "dummy"} if program.venv else {}
    child = Child(command, folder / "output", child_environment(changes=changes), cwd=folder)
    try:
        ended = child.wait_for_end(deadline)
    finally:
        child.end()
    if not ended or child.process.returncode:
        text = last_line(child.output.read_text(errors="replace")) if ended else f"not done after {deadline:g} s"
        raise RunFailedError(f"{program.script}: {text}")
    return [json.loads(line) for line in clock.read_text().splitlines()]


def _python(program: Program, venvs: Path) -> Any:
    """Return the interpreter of a program; its virtual environment is made on first use."""
    return sys.executable if program.venv is None else prepare(program.venv, venvs, VENVS[program.venv])
