"""MkDocs hooks: pages for each public name, for the examples and results outside of docs/, and formulas as MathML.

Links in docs/*.md are right in the repository (`../examples/cnn.py`); the hooks turn them into links to the pages made
of these files.
"""

from __future__ import annotations

import ast
import re
from html import unescape
from pathlib import Path
from typing import Any

from code_tables import ROOT, fill, read
from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

SCRIPT_PAGE = "# {name}\n\n{about}\n\n```python\n{code}```\n"
OUTSIDE = re.compile(r"\]\(\.\./((?:\.\./)*)(examples/|benchmarks/|CHANGELOG\.md|SECURITY\.md)")
NAME = re.compile(r"^::: \S*?(\w+)$((?:\n    .+)*)", re.MULTILINE)  # of a page in docs/reference


def on_config(config: Any) -> Any:
    """Put a page for each public name, each example and each table of results into the navigation."""
    sections = {title: pages for entry in config.nav for title, pages in entry.items()}
    sections["Reference"][:] = [
        {title: [page, *(_name_page(page, match[1]) for match in NAME.finditer(read(f"docs/{page}")))]}
        for entry in sections["Reference"]
        for title, page in entry.items()
    ]
    guides = sections["Guides"]
    place = guides.index({"Examples": "examples.md"})
    guides[place] = {"Examples": ["examples.md", *(f"examples/{script.stem}.md" for script in _examples())]}
    results = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("benchmarks/*/*.md"))
    config.nav.append({"Measurements": results})
    return config


def _name_page(group: str, name: str) -> str:
    return f"{group.removesuffix('.md')}/{name}.md"


def _examples() -> list[Path]:
    return sorted(ROOT.glob("examples/*.py"))


def on_files(files: Files, *, config: Any) -> Files:
    """Add a page for each public name and each example, the tables and pictures of benchmarks/, and the changelog."""
    for group in sorted(ROOT.glob("docs/reference/*.md")):
        for match in NAME.finditer(group.read_text(encoding="utf-8")):
            page = _name_page(f"reference/{group.name}", match[1])
            files.append(File.generated(config, page, content=f"# {match[1]}\n\n{match[0]}\n"))
    for script in _examples():
        code = script.read_text(encoding="utf-8")
        about = ast.get_docstring(ast.parse(code), clean=True).splitlines()[0]
        content = SCRIPT_PAGE.format(name=script.name, about=about, code=code)
        files.append(File.generated(config, f"examples/{script.stem}.md", content=content))
    for pattern in (*(f"benchmarks/*/*.{kind}" for kind in ("md", "json", "png", "svg")), "examples/*.ipynb"):
        for file in sorted(ROOT.glob(pattern)):
            files.append(File.generated(config, file.relative_to(ROOT).as_posix(), abs_src_path=str(file)))
    for name in ("CHANGELOG.md", "SECURITY.md", "examples/browser/README.md"):
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Replace links into the repository, ```math blocks, and names by links to their pages."""
    if re.fullmatch(r"reference/\w+\.md", uri := page.file.src_uri):
        folder = Path(uri).stem
        markdown = NAME.sub(lambda match: f"- [{match[1]}]({folder}/{match[1]}.md)", markdown)
    if (ROOT / "docs" / uri).is_file():  # seen from the site, everything outside of docs/ is in it
        markdown = OUTSIDE.sub(r"](\1\2", fill(markdown))
        markdown = re.sub(r"(\]\((?:\.\./)*examples/\w+)\.py\)", r"\1.md)", markdown)
    else:  # a page of the repository, whose links lead into docs/
        markdown = re.sub(r"\]\(((?:\.\./)*)docs/", r"](\1", markdown)
    return re.sub(r"```math\n(.*?)```", lambda match: _mathml(match[1], "block"), markdown, flags=re.DOTALL)


def on_page_content(content: str, *, page: Any, **_: Any) -> str:
    """Replace $`formulas`$ within a line. Raises PluginError for one in another form, which would stay as it is."""
    content = re.sub(r"\$<code>(.+?)</code>\$", lambda match: _mathml(unescape(match[1]), "inline"), content)
    if left := re.search(r"\$\$.*|\\\(.*", re.sub(r"<(code|pre)\b.*?</\1>", "", content, flags=re.DOTALL)):
        form = "a formula must be $`...`$ or a ```math block"
        raise PluginError(f"{page.file.src_uri}: {form}. Received: {left[0]!r}")
    return content


def _mathml(formula: str, display: str) -> str:
    return convert(" ".join(formula.split()), display=display)
