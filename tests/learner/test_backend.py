"""The seam between the learner and its backend."""

from __future__ import annotations

import ast
from pathlib import Path

import actor_learner

PACKAGE = Path(actor_learner.__file__).parent
FOLDERS = {"tf": "tensorflow", "jax": "jax"}


def imported(file):
    """The modules that a file imports anywhere in it."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield f"{node.module}"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_libraries_are_named_in_the_backends_alone():
    for file in (*(PACKAGE / "learner").rglob("*.py"), *(PACKAGE / "algorithms").rglob("*.py")):
        names = set(imported(file))
        others = set(FOLDERS.values()) - {FOLDERS.get(file.parent.name)}
        assert not {name for name in names if name.partition(".")[0] in others}, file
        if file.parent.name not in FOLDERS and file.name != "backend.py":
            inner = [f"actor_learner.learner.{folder}." for folder in FOLDERS]
            assert not {name for name in names if name.startswith(tuple(inner))}, file


def public(folder):
    """The public names that the modules of a backend define which `learner/backend.py` takes over."""
    for module in ("compiled", "devices", "fused_adam"):
        file = PACKAGE / "learner" / folder / f"{module}.py"
        for node in ast.parse(file.read_text(encoding="utf-8")).body if file.exists() else ():
            targets = [ast.walk(target) for target in node.targets] if isinstance(node, ast.Assign) else []
            yield from (name.id for target in targets for name in target if isinstance(name, ast.Name))
            yield from [node.name] if isinstance(node, ast.FunctionDef | ast.ClassDef) else []


def test_backends_have_the_same_functions():
    of_tensorflow, of_jax = ({name for name in public(folder) if not name.startswith("_")} for folder in FOLDERS)
    assert of_jax == of_tensorflow | {"AXIS"}
