"""MkDocs hooks: pages for the examples and results outside of docs/, and formulas as MathML.

Links in docs/*.md are right in the repository (`../examples/cnn.py`); the hooks turn them into links to the pages made
of these files.
"""

from __future__ import annotations

import ast
import re
from html import unescape
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
SCRIPT_PAGE = "# {name}\n\n{about}\n\n```python\n{code}```\n"


def on_files(files: Files, *, config: Any) -> Files:
    """Add a page for each example, and the tables and pictures of benchmarks/."""
    for script in sorted(ROOT.glob("examples/*.py")):
        code = script.read_text(encoding="utf-8")
        about = ast.get_docstring(ast.parse(code), clean=True).splitlines()[0]
        content = SCRIPT_PAGE.format(name=script.name, about=about, code=code)
        files.append(File.generated(config, f"examples/{script.stem}.md", content=content))
    for pattern in ("*.md", "*.json", "*.png", "*.svg"):
        for file in sorted(ROOT.glob(f"benchmarks/*/{pattern}")):
            files.append(File.generated(config, file.relative_to(ROOT).as_posix(), abs_src_path=str(file)))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Replace links into the repository and ```math blocks."""
    if "/" not in page.file.src_uri:
        markdown = re.sub(r"\]\(\.\./examples/(\w+)\.py\)", r"](examples/\1.md)", markdown)
        markdown = markdown.replace("](../benchmarks/", "](benchmarks/")
    return re.sub(r"```math\n(.*?)```", lambda match: _mathml(match[1], "block"), markdown, flags=re.DOTALL)


def on_page_content(content: str, **_: Any) -> str:
    """Replace $`formulas`$ within a line."""
    return re.sub(r"\$<code>(.+?)</code>\$", lambda match: _mathml(unescape(match[1]), "inline"), content)


def _mathml(formula: str, display: str) -> str:
    return convert(" ".join(formula.split()), display=display)
