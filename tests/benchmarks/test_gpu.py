"""scripts/measure gpu: failures of single rows; and what the pack holds."""

from __future__ import annotations

import subprocess
import time
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from benchmarks.gpu import gpu, pack
from benchmarks.harness import ROOT, RunFailedError

pytestmark = pytest.mark.thorough


def parsed(*words):
    return gpu._make_parser().parse_args(words)


def test_a_size_that_ends_its_process_leaves_the_others(monkeypatch):
    asked = []

    def child_rows(kind, request, seconds, environment):
        asked.append((request["agree"], request["minibatch_sizes"]))
        if request["agree"]:
            yield {"part": "agreement", "difference": 0.0}
        for size in request["minibatch_sizes"]:
            if size == 256:
                raise RunFailedError("killed")
            yield {"part": "updates", "minibatch_size": size}

    monkeypatch.setattr(gpu, "child_rows", child_rows)
    found = {"command": "scripts/measure gpu", "updates": [], "agreement": [], "pipeline": []}
    job = gpu.learner_job(parsed("--minibatch-sizes", "64", "256", "1024"), "mlp", "float32")
    for _ in range(2):  # the second time, what failed is tried again
        gpu.measure(job, found, None, {}, time.monotonic() + 60)
    assert asked == [(True, [64, 256, 1024]), (False, [1024]), (False, [256])]
    assert {row["minibatch_size"]: row.get("failed") for row in found["updates"]} == {
        64: None,
        1024: None,
        256: "killed",
    }
    assert len(found["agreement"]) == 1


def test_the_pack_brings_what_the_machine_lacks(tmp_path):
    machine = {"numpy", "cloudpickle", "rich"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {Requirement(text).name for text in project["dependencies"]} - {"tensorflow"}
    assert needed <= machine | set(pack.WHEELS)
    pack.copy_source(tmp_path)
    files = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file()}
    assert {"actor_learner/config/presets.toml", "actor_learner_envs/catch.py", "benchmarks/gpu/gpu.py"} <= files
    assert not {file for file in files if Path(file).suffix in (".json", ".png", ".md", ".pyc")}
    subprocess.run(["bash", "-n", pack.RUN], check=True)
