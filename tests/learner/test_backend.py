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


def test_backends_have_the_same_functions():
    tree = ast.parse((PACKAGE / "learner/backend.py").read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    named = {alias.name for node in imports for alias in node.names if ".learner.tf." in node.module}
    by_jax = set()
    for module in [node.module for node in imports if ".learner.jax." in node.module]:
        file = PACKAGE.parent / (module.replace(".", "/") + ".py")
        body = ast.parse(file.read_text(encoding="utf-8")).body
        by_jax |= {node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        targets = [ast.walk(target) for node in body if isinstance(node, ast.Assign) for target in node.targets]
        by_jax |= {name.id for target in targets for name in target if isinstance(name, ast.Name)} & named
    assert {name for name in by_jax if not name.startswith("_")} == named
