"""The compared libraries: ours at two lags, and the peers, each with its virtual environment, made on first use."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.harness import Figures
from benchmarks.works import ALL_WORKS, WORKS


@dataclass(frozen=True)
class Peer:
    """A measured library: `script` in programs/, run by the interpreter of `venv` (None: ours)."""

    title: str
    script: str
    venv: str | None
    packages: tuple[str, ...] = ()  # the table names their versions
    works: tuple[str, ...] = ()
    options: Figures = field(default_factory=dict)  # of every task
    note: str = ""  # on its figures
    settings: tuple[Figures, ...] = ()  # to try; none: one thread, and one for each core
    worker: str = r"$^"  # a pattern of the command lines of its worker processes
    deadline: float = 75.0  # seconds for a run
    with_processes: bool = False  # True: environments can step in processes of their own, but by default don't
    clock: str = ""  # the signal that an update has ended


WORK_NAMES = tuple(WORKS)
_OURS = {"worker": r"\bactor-\d+", "works": tuple(ALL_WORKS), "clock": "`time_seconds` of metrics.jsonl"}
_SB3 = {"works": (*WORK_NAMES, "pong_bfloat16"), "worker": r"multiprocessing.forkserver", "with_processes": True}
_SB3["clock"] = "callback at the start of each rollout"
OURS: dict[str, Peer] = {
    f"lag{lag}": Peer(f"ours, lag {lag}", "ours", None, options={"lag": lag}, **_OURS) for lag in (0, 1)
}
PEERS: dict[str, Peer] = {
    "sb3": Peer("SB3", "sb3", "sb3", ("stable-baselines3", "torch"), options={"peer": "sb3"}, **_SB3),
    "sbx": Peer("SBX", "sb3", "sb3", ("sbx-rl", "jax"), options={"peer": "sbx"}, **_SB3),
    "sample_factory": Peer(
        *("Sample Factory", "sample_factory", "sample_factory", ("sample-factory", "torch")),
        works=("cartpole", "cartpole64", "cartpole32", "halfcheetah"),
        options={"workers": 2},
        settings=({"threads": 1},),  # it sets one thread itself
        note="2 workers, rollouts of at most a minibatch, one batch ahead; HalfCheetah-v4",
        worker=r"multiprocessing.spawn",
        clock="observer's call after each iteration",
        deadline=200.0,
    ),
    "rllib": Peer(
        *("RLlib", "rllib", "rllib", ("ray", "torch"), WORK_NAMES[:3]),
        settings=({"workers": 0, "threads": 2}, {"workers": 0, "threads": 1}, {"workers": 2, "threads": 1}),
        note="PPO's new API stack; environments in the learner's process, or in two env runners",
        worker=r"ray::SingleAgentEnvRunner",
        clock="the end of each call of `train`",
        deadline=200.0,
    ),
    "cleanrl_jax": Peer(
        *("CleanRL's way, EnvPool, JAX", "cleanrl_jax", "cleanrl_jax", ("jax", "flax", "envpool"), WORK_NAMES[:3]),
        clock="the end of each update",
    ),
}

_TORCH = ("torch==2.13.0",)
_SB3_PACKAGES = (
    *("stable-baselines3==2.9.*", "sb3-contrib==2.9.*", "sbx-rl==0.28.*"),
    *("gymnasium[box2d,mujoco]", "ale-py", "opencv-python-headless"),
)
VENVS: dict[str, tuple[tuple[str, ...], ...]] = {
    "sb3": (_TORCH, _SB3_PACKAGES),
    "rllib": (_TORCH, ("ray[rllib]==2.60.*", "gymnasium[mujoco]")),
    "sample_factory": (_TORCH, ("sample-factory==2.1.*", "mujoco<3.2", "imageio")),
    "cleanrl_jax": (("jax==0.10.*", "flax", "optax", "gymnasium", "envpool==1.2.*"),),
}
"""The packages of each, in successive calls of pip: torch first, so that nothing installs another build of it."""
_INSTALL_SECONDS, _VERSIONS_SECONDS = 1800.0, 60.0
_VERSIONS = """
import importlib.metadata as m, json, sys
found = {d.metadata['Name'].lower().replace('_', '-'): d.version for d in m.distributions()}
print(json.dumps({name: found[name] for name in sys.argv[1:] if name in found}))
"""


class NotInstallableError(Exception):
    """A virtual environment can't be made; the message is one line."""


def prepare(name: str, folder: Path, calls: tuple[tuple[str, ...], ...] | None = None) -> Path:
    """Return the interpreter of a venv in `folder`, which is made if it doesn't exist. Raises NotInstallableError.

    calls: the packages in successive calls of pip; by default those of `VENVS`.
    """
    calls = calls or VENVS[name]
    venv = folder.resolve() / name
    python, unfinished = venv / "bin/python", folder / f".{name}-unfinished"
    if python.exists() and not unfinished.exists():
        return python
    print(f"{name}: installing {', '.join(' '.join(call) for call in calls)} into {venv} ...", flush=True)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        unfinished.touch()
        _run([sys.executable, "-m", "venv", "--clear", str(venv)])
        for packages in calls:
            _run([str(python), "-m", "pip", "install", "--quiet", *packages])
        unfinished.unlink()
    except OSError as error:
        raise NotInstallableError(str(error)) from None
    return python


def _run(command: list[str], seconds: float = _INSTALL_SECONDS) -> str:
    """Return what a command prints. Raises NotInstallableError with the last line of its errors."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        raise NotInstallableError(f"{command[0]} timed out after {seconds:g} s") from None
    except OSError as error:
        raise NotInstallableError(str(error)) from None
    if done.returncode:
        raise NotInstallableError(f"{command[0]} fails: {last_line(done.stderr, prefix='ERROR')}")
    return done.stdout


def last_line(text: str, prefix: str = "") -> str:
    """Return the last line that isn't empty, shortened; if any lines begin with the prefix, the last of those."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    lines = [line for line in lines if line.startswith(prefix)] or lines or ["without a message"]
    return lines[-1] if len(lines[-1]) <= 200 else f"{lines[-1][:200]} ..."


def versions(python: Path, packages: tuple[str, ...]) -> dict[str, str]:
    """Return the versions of those packages that are installed. Raises NotInstallableError."""
    return dict(json.loads(_run([str(python), "-c", _VERSIONS, *packages], _VERSIONS_SECONDS)))
