"""A griffe extension: fields and arguments of the reference show their defaults and help, as `--help` does."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import griffe
from code_tables import default_of

REFERENCE = Path(__file__).parent / "reference"


class Fields(griffe.Extension):
    """Gives fields that functions make what the classes have when they run. After griffe's own `dataclasses`."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        pages = "".join(page.read_text(encoding="utf-8") for page in REFERENCE.glob("*.md"))
        self._shown = set(re.findall(r"^::: \S*?(\w+)$", pages, re.MULTILINE))
        self._describe(pkg)

    def _describe(self, parent: griffe.Module | griffe.Class) -> None:
        for member in parent.members.values():
            if member.is_alias or not isinstance(member, (griffe.Module, griffe.Class)):
                continue
            if isinstance(member, griffe.Class) and member.name in self._shown:
                if "dataclass" in member.labels:
                    _describe_fields(member)
                else:
                    _describe_arguments(member)
            self._describe(member)


def _running(documented: griffe.Class) -> Any:
    return getattr(importlib.import_module(documented.module.path), documented.name)


def _describe_arguments(documented: griffe.Class) -> None:
    """Give `__init__` the text that it has when it runs, with those of settings."""
    init = documented.members.get("__init__")
    if init is not None and init.docstring is not None:
        init.docstring.value = inspect.cleandoc(_running(documented).__init__.__doc__)


def _describe_fields(documented: griffe.Class) -> None:
    running = _running(documented)
    if documented.docstring is not None:
        documented.docstring.value = inspect.cleandoc(running.__doc__)  # with the fields of its base classes
    parameters = documented["__init__"].parameters
    texts = {}
    for field in dataclasses.fields(running):
        shown = default_of(field)
        if field.name in parameters:
            parameters[field.name].default = shown
        if field.name in documented.members and shown is not None:
            documented[field.name].value = shown
        if "help" in field.metadata:
            texts[field.name] = field.metadata["help"]
    if texts and documented.docstring is not None and "Attributes:" not in documented.docstring.value:
        lines = "".join(f"    {name}: {text[0].upper()}{text[1:]}.\n" for name, text in texts.items())
        documented.docstring.value += f"\n\nAttributes:\n{lines}"
