"""Folders from which Python can import the project as it is here, or as it was at a commit."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

from benchmarks.harness import ROOT

PACKAGES = {"actor_learner": "actor_learner", "actor_learner_envs": "envs"}
"""The folder of each package in the repository."""


class UnknownRefError(ValueError):
    """There is no such commit."""


def commit_of(ref: str, repository: Path = ROOT) -> str:
    """Return the commit of a name. Raises UnknownRefError, in one line."""
    found = _git(repository, "rev-parse", "--verify", "--quiet", "--end-of-options", ref + "^{commit}")
    if found.returncode:
        raise UnknownRefError(
            f"there is no such commit, branch or tag; `git log` and `git branch -a` list them. Received: {ref!r}"
        )
    return found.stdout.decode().strip()


def working_tree(folder: Path, repository: Path = ROOT) -> Path:
    """Make a folder with links to the packages as they are now."""
    folder.mkdir()
    for package, source in PACKAGES.items():
        (folder / package).symlink_to(repository / source)
    return folder


def tree_of(commit: str, folder: Path, repository: Path = ROOT) -> Path:
    """Make a folder with the packages of a commit; the repository doesn't refer to it."""
    archive = _git(repository, "archive", "--format=tar", commit, *PACKAGES.values())
    if archive.returncode:
        raise UnknownRefError(f"that commit has no {' and '.join(PACKAGES.values())}. Received: {commit!r}")
    folder.mkdir()
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(folder, filter="data")
    for package, source in PACKAGES.items():
        if package != source:
            (folder / source).rename(folder / package)
    return folder


def _git(repository: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", *words], cwd=repository, capture_output=True, check=False)
