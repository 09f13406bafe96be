"""Each fault that benchmarks/suite/faults.toml would plant still has its place, and tests beside it."""

from __future__ import annotations

from pathlib import Path

from benchmarks.suite.planted_faults import FAULTS

ROOT = Path(__file__).parents[2]


def test_each_fault_has_one_place_and_tests_nearby():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) > 20
    for fault in FAULTS:
        text = (ROOT / "actor_learner" / fault.file).read_text(encoding="utf-8")
        assert text.count(fault.old) == 1, fault.name
        assert fault.new != fault.old
        for path, _, name in (near.partition("::") for near in fault.near):
            assert (ROOT / "tests" / path).exists()
            assert not name or f"def {name}(" in (ROOT / "tests" / path).read_text(encoding="utf-8")
