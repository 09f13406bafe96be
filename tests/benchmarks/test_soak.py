"""A small soak: faults of every kind while a run learns, with every batch checked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import patience

ROOT = Path(__file__).parents[2]


@pytest.mark.thorough
def test_a_soak_in_small(tmp_path):
    words = ["--minutes", "0.12", "--fault-every", "0.8", "--actors", "2", "--actor-timeout", str(patience(2.0))]
    command = [sys.executable, "-m", "benchmarks", "soak", *words, "--output", tmp_path / "soak.json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=patience(200))
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "soak.json").read_text())
    assert result["problems"] == []
    assert result["faults_caused"] >= 4
    assert result["replacements"] >= 2
    assert result["batches_checked"] >= 5
