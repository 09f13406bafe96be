"""The peers' virtual environments, each made on first use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

_TORCH = ("torch==2.13.0",)

VENVS: dict[str, tuple[tuple[str, ...], ...]] = {
    # opencv: SB3's Atari wrappers
    "sb3": (
        _TORCH,
        ("stable-baselines3==2.9.*", "sbx-rl==0.28.*", "gymnasium[mujoco]", "ale-py", "opencv-python-headless"),
    ),
    "sample_factory": (_TORCH, ("sample-factory==2.1.*",)),
    # Its own upper bounds would keep HalfCheetah-v5 out.
    "pufferlib": (
        _TORCH,
        (
            *("numpy<2", "setuptools", "wheel", "gymnasium[mujoco]", "ale-py", "gym==0.26.*", "opencv-python-headless"),
            *("psutil", "rich", "rich_argparse", "pynvml", "pyro-ppl", "pettingzoo", "imageio"),
        ),
        ("--no-deps", "--no-build-isolation", "pufferlib==3.0.0"),
    ),
    "cleanrl": (_TORCH, ("gymnasium", "envpool==1.2.*")),
    "cleanrl_jax": (("jax==0.10.*", "flax", "optax", "gymnasium", "envpool==1.2.*"),),
    "rllib": (_TORCH, ("ray[rllib]==2.60.*",)),
}
"""What each is made of, in calls of pip one after the other: torch first, so that nothing takes another build of it."""

ENVIRONMENT: dict[str, dict[str, str]] = {
    # Without its own games, whose sources it would download; and without a CUDA compiler, whose kernels need a GPU.
    "pufferlib": {"NO_OCEAN": "1", "PATH": "{venv}/bin:/usr/bin:/bin"},
}
"""Of pip, where a package is to be built in another way."""

START_UP_FILES: dict[str, tuple[str, str]] = {
    # Its setup.py doesn't define the name without its games, and asks for it all the same.
    "pufferlib": ("no_games.pth", "import builtins; builtins.c_extension_paths = []\n"),
}
"""A file that is in site-packages while packages are installed."""

INSTALL_SECONDS = 1800.0
_VERSIONS_SECONDS = 60.0


class NotInstallableError(Exception):
    """A venv can't be made; says why in a line."""


def prepare(name: str, folder: Path) -> Path:
    """The interpreter of a venv in `folder`, which is made if it isn't there. Raises NotInstallableError."""
    venv = folder.resolve() / name
    python, unfinished = venv / "bin/python", folder / f".{name}-unfinished"
    if python.exists() and not unfinished.exists():
        return python
    print(f"{name}: installing {', '.join(' '.join(call) for call in VENVS[name])} into {venv} ...", flush=True)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        unfinished.touch()
        _install(name, venv)
        unfinished.unlink()
    except OSError as error:
        raise NotInstallableError(str(error)) from None
    return python


def _install(name: str, venv: Path) -> None:
    python = venv / "bin/python"
    _run([sys.executable, "-m", "venv", "--clear", str(venv)], {})
    site = next(venv.glob("lib/python*/site-packages"), None)
    if site is None:
        raise NotInstallableError(f"there is no site-packages in {venv}")
    file, text = START_UP_FILES.get(name, ("", ""))
    if file:
        (site / file).write_text(text)
    environment = {key: value.format(venv=venv) for key, value in ENVIRONMENT.get(name, {}).items()}
    for packages in VENVS[name]:
        _run([str(python), "-m", "pip", "install", "--quiet", *packages], environment)
    if file:
        (site / file).unlink()


def _run(command: list[str], environment: dict[str, str]) -> None:
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=INSTALL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NotInstallableError(f"not installed after {INSTALL_SECONDS:,.0f} s") from None
    if done.returncode:
        raise NotInstallableError(last_line(done.stderr, prefix="ERROR"))


def last_line(text: str, prefix: str = "") -> str:
    """The last line that says something, cut; of those that begin so, if there are any."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    lines = [line for line in lines if line.startswith(prefix)] or lines or ["without a word"]
    return lines[-1] if len(lines[-1]) <= 200 else f"{lines[-1][:200]} ..."


def versions(python: Path, packages: tuple[str, ...]) -> dict[str, str]:
    """Of these packages, those that are installed. Raises NotInstallableError where the interpreter can't tell."""
    program = (
        "import importlib.metadata as m, json, sys\n"
        "found = {d.metadata['Name'].lower().replace('_', '-'): d.version for d in m.distributions()}\n"
        "print(json.dumps({name: found[name] for name in sys.argv[1:] if name in found}))"
    )
    command = [str(python), "-c", program, *packages]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_VERSIONS_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstallableError(str(error)) from None
    if done.returncode:
        raise NotInstallableError(f"{python} fails: {last_line(done.stderr)}")
    return dict(json.loads(done.stdout))
