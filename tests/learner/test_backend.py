"""The seam between the learner and its backend."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import actor_learner

PACKAGE = Path(actor_learner.__file__).parent
NEUTRAL = [
    *(file for file in (PACKAGE / "learner").rglob("*.py") if file.parent.name != "tf"),
    *(PACKAGE / "algorithms").rglob("*.py"),
]


def imported(file):
    """The modules that a file imports anywhere in it."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield f"{node.module}"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("file", NEUTRAL, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_tensorflow_is_named_in_the_backend_alone(file):
    names = set(imported(file))
    assert not {name for name in names if name.partition(".")[0] == "tensorflow"}
    if file.name != "backend.py":
        assert not {name for name in names if name.startswith("actor_learner.learner.tf")}
