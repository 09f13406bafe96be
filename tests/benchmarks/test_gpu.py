"""scripts/measure gpu: time limits and failures of single rows; what the pack holds."""

from __future__ import annotations

import subprocess
import threading
import time
import tomllib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from packaging.requirements import Requirement

from actor_learner.actors import pool
from actor_learner.benchmark.whole import Run, Span
from actor_learner.build import make_pool
from actor_learner.spaces.spaces import Spaces
from benchmarks.gpu import child, gpu, pack, page
from benchmarks.gpu.works import ACTORS, EPOCHS, PIPELINES
from benchmarks.harness import ROOT, RunFailedError

pytestmark = pytest.mark.thorough

FAR = 3600.0


def parsed(*words):
    return gpu._make_parser().parse_args(words)


def nothing():
    return {
        "command": "scripts/measure gpu",
        "backend": "jax",
        "updates": [],
        "agreement": [],
        "pipeline": [],
    }


def test_a_size_that_ends_its_process_leaves_the_others(monkeypatch):
    asked = []

    def child_rows(kind, request, environment, row_seconds, seconds):
        asked.append((request["agree"], request["minibatch_sizes"]))
        if request["agree"]:
            yield {"part": "agreement", "difference": 0.0}
        for size in request["minibatch_sizes"]:
            if size == 256:
                raise RunFailedError("killed")
            yield {"part": "updates", "minibatch_size": size}

    monkeypatch.setattr(gpu, "child_rows", child_rows)
    found = nothing()
    job = gpu.learner_job(parsed("--minibatch-sizes", "64", "256", "1024"), "mlp", "float32")
    for _ in range(2):  # the second time, what failed is tried again
        gpu.measure(job, found, None, {}, gpu.Limits(time.monotonic() + FAR, FAR))
    assert asked == [(True, [64, 256, 1024]), (False, [1024]), (False, [256])]
    assert {row["minibatch_size"]: row.get("failed") for row in found["updates"]} == {
        64: None,
        1024: None,
        256: "killed",
    }
    assert len(found["agreement"]) == 1


def test_parts_share_the_time_of_those_that_are_measured():
    whole = gpu.parts(parsed())
    ends = [end for _, end in gpu.with_ends(whole, 100.0, 540.0)]
    assert ends == sorted(ends)
    assert ends[-1] == pytest.approx(640.0)
    assert [part.title for part in whole][:2] == ["updates", "the pipeline"]
    (alone,) = gpu.with_ends(gpu.parts(parsed("--parts", "learner", "--networks", "mlp", "nature")), 100.0, 540.0)
    assert alone[1] == pytest.approx(640.0)
    (impala,) = (job for part in whole for job in part.jobs if job.request.get("network") == "impala")
    assert impala.request["precision"] == "bfloat16"


def test_a_row_that_takes_too_long_ends_its_process():
    ended = threading.Event()

    def lines():
        yield "first"
        assert ended.wait(FAR)

    found = gpu.in_time(lines(), ended.set, 0.05, time.monotonic() + FAR)
    assert next(found) == "first"
    with pytest.raises(RunFailedError, match="took longer"):
        next(found)
    ended.clear()
    with pytest.raises(RunFailedError):  # no time is left, however long a row may take
        list(gpu.in_time(iter(lambda: ended.wait(FAR), True), ended.set, FAR, time.monotonic()))


def test_rows_of_a_part_whose_time_is_over_say_so(monkeypatch):
    def child_rows(kind, request, environment, row_seconds, seconds):
        yield {"part": "pipeline", "acting": "actors", "skipped": "a row that was in time"}
        time.sleep(seconds)
        raise RunFailedError("ended")

    monkeypatch.setattr(gpu, "child_rows", child_rows)
    found, end = nothing(), time.monotonic() + 0.05
    for work in ("cartpole", "pong"):
        job = gpu.pipeline_job(parsed("--smoke"), work, 15, "gpu", ("actors", "device"))
        gpu.measure(job, found, None, {}, gpu.Limits(end, FAR))
    told = [row.get("failed") or row["skipped"] for row in found["pipeline"]]
    over, late = "ended: the time for this part was over", "not begun: no time was left for pipeline"
    assert told == ["a row that was in time", over, late, late]
    text = "\n".join(page.pipeline(found))
    assert late in text
    assert page.CPU_NOTE not in text


def test_shares_of_a_pipeline_are_of_one_process_and_no_keys_of_its_row():
    spans = [Span("learner", "learning", 0, 1.0), Span("actor_0", "acting", 0, 1.5), Span("actor_1", "acting", 1, 1.5)]
    done = Run(seconds=2.0, batches=1, steps=8, rows=8, cpu={}, others=0.0, spans=spans)
    config = PIPELINES["cartpole"].config(num_actors=2)
    figures = child.run(SimpleNamespace(run=lambda _: done, wait_until_idle=lambda: None, config=config), 2.0, None)
    assert figures == {"steps_per_second": 4.0, "learning_share": 0.5, "acting_share": 0.5, "gpu_busy": None}
    assert not figures.keys() & set(gpu.KEYS["pipeline"])


@pytest.mark.parametrize("num_actors", [*ACTORS, 12])
def test_the_pack_has_the_export_that_a_pool_looks_for(num_actors, monkeypatch):
    asked = []

    def export(network, spaces, size):
        asked.append(size)
        raise InterruptedError

    spaces = Spaces(Box(-1, 1, (3,), np.float32), Discrete(2))
    group = SimpleNamespace(start=lambda: None, close=lambda: None, spaces=lambda seconds: spaces)
    monkeypatch.setattr(pool.ActorPool, "_make_group", lambda *_: group)
    monkeypatch.setattr(pool, "_export", export)
    work = PIPELINES["cartpole"]
    with pytest.raises(InterruptedError):
        make_pool(work.config(num_actors=num_actors), None, seed=0, logs_dir=None)
    assert asked == [work.export_size(num_actors)]


def test_the_pack_brings_what_the_machine_lacks(tmp_path):
    machine = {"numpy", "cloudpickle", "rich"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {Requirement(text).name for text in project["dependencies"]} - {"tensorflow"}
    assert needed <= machine | set(pack.WHEELS)
    left_out = {"typing_extensions==4.16.0", "Backports.StrEnum", "torch"}
    assert set(pack.WHEELS) - set(pack.missing(pack.WHEELS, left_out)) == {"typing-extensions", "backports-strenum"}
    pack.copy_source(tmp_path)
    files = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file()}
    assert {"actor_learner/config/presets.toml", "actor_learner_envs/catch.py", "benchmarks/gpu/gpu.py"} <= files
    assert not {file for file in files if Path(file).suffix in (".json", ".png", ".md", ".pyc")}
    subprocess.run(["bash", "-n", pack.RUN], check=True)


def test_an_update_is_measured_with_and_without_a_copy_of_its_batch_ahead():
    row = child.updates("mlp", "float32", "cpu", minibatch_size=32, rows=64, seconds=0.01)
    assert min(row["update_seconds"], row["update_seconds_copied_ahead"], row["transfer_seconds"]) > 0
    assert row["samples_per_second"] == pytest.approx(64 * EPOCHS / row["update_seconds"])
