"""The programs of this installation, and the command that adds a package to it."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from pathlib import Path


def own_command(program: str = "actor-learner") -> str:
    """Return the text to type for a program of this installation: its name if the shell finds it, else its path."""
    path, found = Path(sys.prefix) / "bin" / program, shutil.which(program)
    if not path.exists() or (found and path.samefile(found)):
        return program
    return os.path.relpath(path) if path.is_relative_to(os.getcwd()) else str(path)


def install_command(requirement: str) -> str:
    """Return the shell command that installs a package, or an extra of this one, into this installation.

    requirement: "matplotlib>=3.10" or "actor-learner[plots]". If this package was installed from a folder, the command
    names the folder, which holds where no index has this package.
    """
    import shlex

    name, bracket, extras = requirement.partition("[")
    option = ""
    if name == "actor-learner" and (folder := _folder()):
        path, editable = folder
        option = "--editable " if editable else ""
        requirement = f"{'.' if os.path.samefile(path, os.getcwd()) else path}{bracket}{extras}"
    return f"{shlex.quote(own_command('pip'))} install {option}{shlex.quote(requirement)}"


def check_package(name: str, what: str, extra: str) -> None:
    """Raise ImportError with the name of the extra if a package isn't installed."""
    try:
        importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"{what} needs {name}: {install_command(f'actor-learner[{extra}]')}") from error


def _folder() -> tuple[str, bool] | None:
    """Return the folder that this package was installed from (PEP 610), if it is there, and True if it is editable."""
    import importlib.metadata
    import json
    import urllib.parse
    import urllib.request

    try:
        origin = json.loads(importlib.metadata.distribution("actor-learner").read_text("direct_url.json") or "{}")
    except importlib.metadata.PackageNotFoundError:
        return None
    path = urllib.request.url2pathname(urllib.parse.urlsplit(origin.get("url", "")).path)
    if "dir_info" not in origin or not os.path.isdir(path):
        return None
    return path, bool(origin["dir_info"].get("editable"))
