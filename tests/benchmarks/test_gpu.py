"""scripts/measure gpu: its table, its file, failures of single rows, a real measurement; and what the pack holds."""

from __future__ import annotations

import json
import subprocess
import time
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from benchmarks.gpu import child, gpu, pack
from benchmarks.gpu.page import page
from benchmarks.harness import ROOT, RunFailedError

pytestmark = pytest.mark.slow

MACHINE = {"cpu": "A CPU", "cores": 16}
SEEN = {"gpus": ["A GPU"], "backend": "JAX", "versions": {"jax": "1.0"}, "machine": MACHINE, "uses_tf32": False}
UPDATE = {"network": "mlp", "precision": "float32", "minibatch_size": 64}
MEASURED = {
    "samples_per_second": 123456.0,
    "update_seconds": 0.002,
    "update_seconds_copied_ahead": 0.0015,
    "transfer_seconds": 0.0005,
    "first_update_seconds": 12.34,
    "gpu_busy": 0.5,
    "peak_bytes": 7_000_000,
}


def found_with(**parts):
    source = {"command": "scripts/measure gpu", "date": "2026-01-01", "device": "gpu", **SEEN}
    return {**source, "updates": [], "agreement": [], "pipeline": [], **parts}


def lines_with(word, found):
    return [line for line in page(found) if word in line]


def parsed(*words):
    return gpu._make_parser().parse_args(words)


def test_a_table_of_updates_says_what_is_missing_and_why():
    full = {**UPDATE, "minibatch_size": 8192, "failed": "The GPU's memory is too small"}
    without = {**UPDATE, "precision": "tf32", **MEASURED, "gpu_busy": None, "peak_bytes": None}
    found = found_with(updates=[full, without, {**UPDATE, **MEASURED}])
    assert lines_with("| MLP", found) == [
        "| MLP (64, 64) | float32 | 64 | 123,456 | 2.00 | 1.50 | 0.50 | 12.3 | 50% | 7 |",
        "| MLP (64, 64) | float32 | 8,192 | The GPU's memory is too small | - | - | - | - | - | - |",
        "| MLP (64, 64) | TF32 | 64 | 123,456 | 2.00 | 1.50 | 0.50 | 12.3 | - | - |",
    ]
    assert not lines_with("## Agreement", found)


def test_every_row_of_a_table_has_the_columns_of_its_header():
    works = [{"work": "pong", "num_actors": 4, reason: "a | b"} for reason in ("skipped", "failed")]
    agreement = [{"network": "impala", "precision": "float32", "failed": "x"}]
    found = found_with(updates=[{**UPDATE, "failed": "x"}], agreement=agreement, pipeline=works)
    tables = [line for line in page(found) if line.startswith("|")]
    columns = [line.count("|") for line in tables]
    assert columns == [11] * 3 + [6] * 3 + [10] * 4


def test_the_pipeline_on_both_devices_beside_each_other():
    figures = {"learning": 0.25, "gpu_busy": None, "rounds_steps_per_second": []}
    both = {
        "gpu": {**figures, "steps_per_second": 3000.0, "gpu_busy": 0.1},
        "cpu": {**figures, "steps_per_second": 1e3},
    }
    alone = {"work": "pong", "num_actors": 2, "rounds": 1, "cpu": both["cpu"]}
    found = found_with(pipeline=[alone, {"work": "cartpole", "num_actors": 2, "rounds": 3, **both}])
    assert lines_with("| 2 |", found) == [
        "| CartPole-v1 | 2 | 3,000 | 1,000 | 3.00 | 25% | 25% | 10% | 3 |",
        "| ALE/Pong-v5 | 2 | - | 1,000 | - | - | 25% | - | 1 |",
    ]


@pytest.mark.parametrize(("difference", "verdict"), [(1e-4, "yes"), (1.1e-4, "no")])
def test_actors_and_learner_agree_up_to_the_target(difference, verdict):
    row = {"network": "nature", "precision": "bfloat16", "difference": difference, "median": 0.0}
    (line,) = lines_with("Nature", found_with(agreement=[row]))
    assert line.endswith(f"| {verdict} |")


def test_a_row_is_written_at_once_and_replaces_the_one_before_it(tmp_path):
    found, output = found_with(), tmp_path / "gpu.json"
    for reason in ("first", "second"):
        gpu.put(found, "updates", {"part": "updates", **UPDATE, "failed": reason}, output)
        (row,) = json.loads(output.read_text())["updates"]
        assert row == {**UPDATE, "failed": reason}
        assert reason in output.with_suffix(".md").read_text()


def test_a_file_is_continued_on_the_same_machine_alone(tmp_path):
    output = tmp_path / "gpu.json"
    gpu.put(found_with(), "updates", {**UPDATE, **MEASURED}, output)
    source = {name: value for name, value in found_with().items() if name not in gpu.KEYS}
    assert gpu.begin(parsed("--output", str(output)), source)["updates"] == [{**UPDATE, **MEASURED}]
    with pytest.raises(RunFailedError, match="gpus is .'A GPU'. there"):
        gpu.begin(parsed("--output", str(output)), {**source, "gpus": ["Another"]})


def test_float32_and_the_pipeline_come_before_other_precisions():
    kinds = [(job.kind, job.request.get("precision")) for job in gpu.jobs(parsed("--actors", "2", "--networks", "mlp"))]
    pipelines = [("pipeline", None)] * 3
    assert kinds == [("learner", "float32"), *pipelines, ("learner", "tf32"), ("learner", "bfloat16")]


def test_a_size_that_ends_its_process_leaves_the_others(monkeypatch):
    asked = []

    def lines_of(kind, request, seconds, environment):
        asked.append((request["agree"], request["minibatch_sizes"]))
        if request["agree"]:
            yield {"part": "agreement", "difference": 0.0}
        for size in request["minibatch_sizes"]:
            if size == 256:
                raise RunFailedError("killed")
            yield {"part": "updates", "minibatch_size": size, **MEASURED}

    monkeypatch.setattr(gpu, "lines_of", lines_of)
    found = found_with()
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


def test_more_actors_than_cores_are_skipped(monkeypatch):
    monkeypatch.setattr(gpu, "available_cores", lambda: 4)
    found = found_with()
    gpu.measure(gpu.pipeline_job(parsed(), "pong", 8), found, None, {}, time.monotonic() + 60)
    assert found["pipeline"] == [{"work": "pong", "num_actors": 8, "skipped": "4 cores"}]


def test_without_time_nothing_begins():
    found = found_with()
    gpu.measure(gpu.learner_job(parsed(), "mlp", "float32"), found, None, {}, time.monotonic() - 1)
    assert found["updates"] == []


def test_too_little_memory_is_a_row_of_its_own():
    def update():
        raise MemoryError("The GPU's memory is too small\nand more")

    assert child.failing(update) == {"failed": "The GPU's memory is too small"}


def test_a_child_has_a_deadline():
    with pytest.raises(RunFailedError, match="it hadn't ended after 0 s"):
        list(gpu.lines_of("describe", {"device": "cpu"}, 0.05, {}))


def test_a_real_measurement(tmp_path, capsys):
    """An actor and the learner agree, and an update takes time, on the CPU."""
    output = tmp_path / "cpu.json"
    words = "--device cpu --backend tensorflow --parts learner --networks mlp --precisions float32 --seconds 0.1"
    gpu.main([*words.split(), "--minibatch-sizes", "64", "--output", str(output)])
    found = json.loads(output.read_text())
    (agreement,), (update,) = found["agreement"], found["updates"]
    assert 0 < agreement["difference"] < 1e-4
    assert update["rows"] == 64
    assert update["samples_per_second"] == pytest.approx(64 * 4 / update["update_seconds"])
    assert output.with_suffix(".md").read_text() == capsys.readouterr().out


def test_the_pack_brings_what_the_machine_lacks(tmp_path):
    machine = {"numpy", "cloudpickle", "rich"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {Requirement(text).name for text in project["dependencies"]} - {"tensorflow"}
    assert needed <= machine | set(pack.WHEELS)
    pack.copy_source(tmp_path)
    files = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file()}
    assert {"actor_learner/train.py", "actor_learner_envs/catch.py", "benchmarks/gpu/gpu.py"} <= files
    assert not {file for file in files if Path(file).suffix in (".json", ".png", ".md", ".pyc")}


def test_the_script_of_the_pack_is_one():
    subprocess.run(["bash", "-n"], input=pack.RUN, text=True, check=True)
