"""Plants small faults (suite/faults.toml) in copies of the project, one each, and says which tests catch them.

    scripts/measure planted-faults --output benchmarks/suite/planted_faults.json

The tests that are nearest run first, in each tier; where none of them fails, the rest of their files, then the whole
tier, until some do. A test catches a fault if it fails twice with it, and not without it. Read the result before tests
are removed, and run this again afterwards.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness import ROOT, Figures, make_parser, map_on_cores, origin, report, tell
from benchmarks.processes import Child


class Fault(NamedTuple):
    """A line of a file of the package, and the wrong line that takes its place."""

    name: str
    file: str  # below actor_learner/
    old: str
    new: str
    near: tuple[str, ...]  # tests, below tests/


FAULTS = tuple(
    Fault(**{**each, "near": tuple(each["near"])})
    for each in tomllib.loads(Path(__file__).with_name("faults.toml").read_text("utf-8"))["faults"]
)

TIERS = {"test": ["-m", "not thorough"], "all": ["--all"]}
"""Arguments of pytest for the tiers of `scripts/test`, the smaller one first."""

WHOLE_SUITE = ("--numprocesses", "2", "--dist", "worksteal")
NEAREST_SECONDS, TIER_SECONDS = 1200.0, 3600.0
MAX_TESTS = 3  # that are named for a fault


def main() -> None:
    parser = make_parser("planted-faults", __doc__ or "", tiers=list(TIERS))
    parser.add_argument("--only", nargs="+", metavar="WORD", help="faults whose names hold one of these words")
    parser.add_argument("--nearest", action="store_true", help="only the nearest tests and the rest of their files")
    parser.add_argument("--at-once", type=int, help="copies at a time (default: one for each core)")
    arguments = parser.parse_args()
    chosen = [fault for fault in FAULTS if any(word in fault.name for word in arguments.only or [""])]
    results = map_on_cores(
        lambda _, fault: try_fault(fault, arguments.tiers, nearest_only=arguments.nearest), chosen, arguments.at_once
    )
    found = dict(zip(chosen, results, strict=True))
    tests = {test for result in found.values() for test in result["tests"]}
    unsound = failing_tests_without_fault(sorted(tests), arguments.tiers[-1])
    faults = {}
    for fault, result in found.items():
        tests = [test for test in result["tests"] if test not in unsound]
        faults[fault.name] = {"file": fault.file, "tier": result["tier"] if tests else None, "tests": tests}
    reached = {tier: list(TIERS)[: list(TIERS).index(tier) + 1] for tier in arguments.tiers}
    caught = {tier: sum(one["tier"] in within for one in faults.values()) for tier, within in reached.items()}
    figures: Figures = {"faults": len(faults), "caught": caught, "fail_without_fault": sorted(unsound)}
    report({**origin(parser), **figures, "each": faults}, arguments.output)


def try_fault(fault: Fault, tiers: Sequence[str], *, nearest_only: bool) -> Figures:
    """Return the first tier with tests that catch a fault, and these tests; None and none if there is none."""
    nearest = [f"tests/{path}" for path in fault.near]
    files = [path.partition("::")[0] for path in nearest]
    with tempfile.TemporaryDirectory(prefix="planted-fault-") as folder:
        copy = copy_project(Path(folder))
        file = copy / "actor_learner" / fault.file
        text = file.read_text()
        if text.count(fault.old) != 1:
            raise ValueError(f"`old` must stand once in {fault.file}. Received: {text.count(fault.old)} times")
        file.write_text(text.replace(fault.old, fault.new))
        for tier in tiers:
            parts = [(nearest, NEAREST_SECONDS), (files, NEAREST_SECONDS)]
            for words, seconds in parts if nearest_only else [*parts, (WHOLE_SUITE, TIER_SECONDS)]:
                failed = failing_tests(copy, [*TIERS[tier], f"--maxfail={MAX_TESTS}", *words], seconds)
                if caught := failing_tests(copy, [*TIERS[tiers[-1]], *failed], NEAREST_SECONDS) if failed else []:
                    tell(f"{fault.name}: {len(caught)} in {tier}, {caught[0]}")
                    return {"tier": tier, "tests": caught[:MAX_TESTS]}
    tell(f"{fault.name}: NOT CAUGHT")
    return {"tier": None, "tests": []}


def failing_tests_without_fault(tests: Sequence[str], tier: str) -> set[str]:
    """Return those of the tests that fail in a copy without a fault."""
    if not tests:
        return set()
    with tempfile.TemporaryDirectory(prefix="planted-fault-") as folder:
        return set(failing_tests(copy_project(Path(folder)), [*TIERS[tier], *tests], TIER_SECONDS))


def copy_project(folder: Path) -> Path:
    """Copy the files that git knows, or would add, into a folder."""
    words = ["git", "ls-files", "-co", "--exclude-standard", "-z"]
    names = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    (folder / ".installed").mkdir()
    (folder / ".installed" / "actor_learner_envs").symlink_to(folder / "envs")
    return folder


def failing_tests(copy: Path, words: Sequence[str], seconds: float) -> list[str]:
    """Run pytest in a copy and return the tests that fail. One that can't be imported fails as a whole file."""
    command = [sys.executable, "-m", "pytest", "--quiet", "--no-header", "--tb=no", "-p", "no:cacheprovider", *words]
    paths = {"PYTHONPATH": os.pathsep.join(map(str, (copy, copy / ".installed")))}
    child = Child(command, copy / "printed", {**os.environ, **paths}, cwd=copy, stderr=None)
    printed = child.output.read_text() if child.wait_for_end(seconds) else ""
    child.end()
    lines = [line.partition(" - ")[0].split(" ", 1) for line in printed.splitlines()]
    return list(dict.fromkeys(line[1] for line in lines if len(line) == 2 and line[0] in ("FAILED", "ERROR")))
