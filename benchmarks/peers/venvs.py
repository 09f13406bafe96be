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
    # Its own upper bounds would exclude HalfCheetah-v5.
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
"""The packages of each, in successive calls of pip: torch first, so that nothing installs another build of it."""

ENVIRONMENT: dict[str, dict[str, str]] = {
    # Without its own games, whose sources it would download, and without a CUDA compiler, whose kernels need a GPU.
    "pufferlib": {"NO_OCEAN": "1", "PATH": "{venv}/bin:/usr/bin:/bin"},
}
"""Variables for pip, where a package is built in another way."""

START_UP_FILES: dict[str, tuple[str, str]] = {
    # Its setup.py doesn't define this name without its games, and reads it all the same.
    "pufferlib": ("no_games.pth", "import builtins; builtins.c_extension_paths = []\n"),
}
"""A file that is in site-packages during the installation."""

INSTALL_SECONDS = 1800.0
_VERSIONS_SECONDS = 60.0
_VERSIONS = """
import importlib.metadata as m, json, sys
found = {d.metadata['Name'].lower().replace('_', '-'): d.version for d in m.distributions()}
print(json.dumps({name: found[name] for name in sys.argv[1:] if name in found}))
"""


class NotInstallableError(Exception):
    """A virtual environment can't be made; the message is one line."""


def prepare(name: str, folder: Path) -> Path:
    """Return the interpreter of a venv in `folder`, which is made if it doesn't exist. Raises NotInstallableError."""
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
    _run([sys.executable, "-m", "venv", "--clear", str(venv)], {})
    site = next(venv.glob("lib/python*/site-packages"), None)
    if site is None:
        raise NotInstallableError(f"there is no site-packages in {venv}")
    file, text = START_UP_FILES.get(name, ("", ""))
    if file:
        (site / file).write_text(text)
    environment = {key: value.format(venv=venv) for key, value in ENVIRONMENT.get(name, {}).items()}
    for packages in VENVS[name]:
        _run([str(venv / "bin/python"), "-m", "pip", "install", "--quiet", *packages], environment)
    if file:
        (site / file).unlink()


def _run(command: list[str], environment: dict[str, str], seconds: float = INSTALL_SECONDS) -> str:
    """Return what a command prints. Raises NotInstallableError with the last line of its errors."""
    variables = {**os.environ, **environment}
    try:
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=seconds, check=False)
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
    return dict(json.loads(_run([str(python), "-c", _VERSIONS, *packages], {}, _VERSIONS_SECONDS)))
