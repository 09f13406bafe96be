"""The documentation site: built strictly, whole, and with nothing in it that is loaded from elsewhere."""

from __future__ import annotations

import html.parser
import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import actor_learner as al
from actor_learner import algorithms

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[2]
LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "object": "data"}


class References(html.parser.HTMLParser):
    """Collect what a page loads, its links and its anchors."""

    def __init__(self, page):
        super().__init__()
        self.loaded, self.links, self.anchors = [], [], set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.anchors |= {values["id"]} if values.get("id") else set()
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        if tag in LOADED and values.get(LOADED[tag]):
            self.loaded.append(values[LOADED[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    for package in ("material", "mkdocstrings", "latex2mathml"):
        pytest.importorskip(package, reason=f"needs {package}")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site):
    return {page: References(page) for page in site.rglob("*.html") if page.name != "404.html"}


def test_every_page_is_linked_and_once_in_the_navigation(site, pages):
    sources = {path.relative_to(ROOT / "docs").with_suffix("") for path in (ROOT / "docs").rglob("*.md")}
    assert {page.relative_to(site).with_suffix("") for page in pages} >= sources
    linked = {(page.parent / unquote(urlsplit(link).path)).resolve() for page, r in pages.items() for link in r.links}
    assert set(map(Path.resolve, pages)) <= linked
    named = re.findall(r'<a href="([^"#]+)" class="md-nav__link', (site / "index.html").read_text(encoding="utf-8"))
    assert len(named) > 10
    assert [target for target in named if named.count(target) > 1 and target not in ("./", "index.html")] == []


def test_links_lead_somewhere(pages):
    anchors = {page.resolve(): references.anchors for page, references in pages.items()}
    for page, references in pages.items():
        for link in (*references.links, *references.loaded):
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page.resolve()
            assert target.exists(), f"{page.name}: {link}"
            if parts.fragment and target in anchors:
                assert unquote(parts.fragment) in anchors[target] | {"__skip"}, f"{page.name}: {link}"


def test_nothing_is_loaded_from_elsewhere(site, pages):
    loaded = [link for references in pages.values() for link in references.loaded]
    assert len(loaded) > len(pages)
    assert [link for link in loaded if urlsplit(link).netloc] == []
    styles = [style.read_text(encoding="utf-8") for style in site.rglob("*.css")]
    assert [url for style in styles for url in re.findall(r"(?:url\(|@import )\W*(?:https?:)?//[^)]*", style)] == []


def test_formulas_and_examples_are_rendered(site):
    pages = [site / "algorithms.html", *sorted(site.glob("algorithms/*.html"))]
    text = {page.stem: page.read_text(encoding="utf-8") for page in pages}
    block = '<math xmlns="http://www.w3.org/1998/Math/MathML" display="block">'
    found = {name: page.count(block) for name, page in text.items()}
    more = {**dict.fromkeys(("crossq", "impala", "iql", "td3", "tqc"), 2), "sac": 3}
    assert found == {name: more.get(name, 1) for name in ("algorithms", *algorithms.BY_NAME)}
    assert [name for name, page in text.items() if "$<code>" in page or "<!--" in page.split("<article")[1]] == []
    assert "<math" in (site / "memory.html").read_text(encoding="utf-8")
    assert "ActorPool" in (site / "examples" / "own_loop.html").read_text(encoding="utf-8")


def test_the_reference_shows_defaults_and_help_and_no_helpers_of_fields(site):
    pages = {page.stem: page.read_text(encoding="utf-8") for page in site.glob("reference/*/*.html")}
    text = {name: unescape(re.sub(r"<[^>]+>", "", page)) for name, page in pages.items()}
    helpers = re.compile(r"= _?(setting|count|flag|choice|number|hyperparameter|field)\(")
    assert {name: found[0] for name, page in text.items() if (found := helpers.search(page))} == {}
    assert "num_actors: int = 2" in text["TrainConfig"]
    assert "clip_range: Schedule = 0.2" in text["PPO"]
    assert "Largest rewarded change of the probability ratio, or a schedule: linear_0.2." in text["PPO"]
    assert (
        "seconds without a sign of life (an env step begun or done) until an actor is replaced" in text["TrainConfig"]
    )  # of its base class


def test_the_reference_has_every_public_name(pages):
    """A function with its module's name is listed by its full path; the short name would be the module's page."""
    anchors = set().union(*(references.anchors for page, references in pages.items() if "reference" in page.parts))
    names = {*al.__all__} - {"__version__", "algorithms", "callbacks", "jax_envs"}
    modules = {name for name in names if (ROOT / "actor_learner" / f"{name}.py").exists()}
    assert {f"actor_learner.{name}.{name}" if name in modules else f"actor_learner.{name}" for name in names} <= anchors
