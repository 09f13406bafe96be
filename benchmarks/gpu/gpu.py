"""An accelerator: updates by network, precision and minibatch, the whole pipeline, agreement with the actors.

    scripts/measure gpu --output benchmarks/gpu/gpu.json              # half an hour; a table is written beside it
    scripts/measure gpu --device cpu --minutes 5 --output cpu.json    # the same program without a GPU
    scripts/measure gpu-pack --output gpu-pack                        # the same for a machine without network: pack.py

The file is written after each row. If it is there already, only the rows that it doesn't have are measured.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from actor_learner.system.machine import available_cores
from benchmarks.gpu.page import page
from benchmarks.gpu.works import ACTORS, NETWORKS, PIPELINES, PRECISIONS, STEPS
from benchmarks.harness import Figures, RunFailedError, child_environment, make_parser, origin, tell
from benchmarks.processes import Child

MINIBATCH_SIZES = {"gpu": [64, 256, 1024, 2048, 8192], "cpu": [64, 256]}
KEYS = {
    "updates": ("network", "precision", "minibatch_size"),
    "agreement": ("network", "precision"),
    "pipeline": ("work", "num_actors"),
}
"""What tells the rows of a part from each other."""

MAX_CHILD_SECONDS = 600.0
_PROBE_SECONDS = 120.0


class Job(NamedTuple):
    """A child: the kind, its arguments, and the keys of the rows that it gives, in their order."""

    kind: str
    request: Figures
    rows: list[tuple[str, Figures]]


def main(words: Sequence[str] | None = None) -> None:
    parser = _make_parser()
    arguments = parser.parse_args(words)
    end = time.monotonic() + 60 * arguments.minutes
    backend, seen = choose_backend(arguments.backend, arguments.device)
    found = begin(arguments, {**origin(parser, words), "device": arguments.device, **seen})
    for job in jobs(arguments):
        measure(job, found, arguments.output, {"KERAS_BACKEND": backend}, end)
    print("\n".join(page(found)))


def _make_parser() -> argparse.ArgumentParser:
    parser = make_parser(
        "gpu",
        __doc__ or "",
        "JSON file to write, or to continue; the table goes beside it",
        networks=list(NETWORKS),
        precisions=list(PRECISIONS),
        works=list(PIPELINES),
        actors=ACTORS,
        rounds=3,
        seconds=3.0,
        minutes=30.0,
    )
    several: dict[str, Any] = {"nargs": "+", "type": int, "metavar": "N"}
    parser.add_argument("--minibatch-sizes", **several, help=f"rows of a minibatch (default: {MINIBATCH_SIZES})")
    parser.add_argument("--rows", type=int, metavar="N", help="rows of a batch (default: of the largest minibatch)")
    parser.add_argument("--device", choices=["gpu", "cpu"], default="gpu", help="of the learner (default: gpu)")
    parser.add_argument("--backend", choices=["jax", "tensorflow"], help="by default the first that sees the device")
    parser.add_argument("--parts", nargs="+", choices=["learner", "pipeline"], default=["learner", "pipeline"])
    return parser


def choose_backend(name: str | None, device: str) -> tuple[str, Figures]:
    """Return the first installed backend that sees the device, and what it says of it. Raises RunFailedError."""
    names = [name] if name else [each for each in ("jax", "tensorflow") if find_spec(each)]
    reasons = ["neither JAX nor TensorFlow is installed"]
    for each in names:
        try:
            (seen,) = child_rows("describe", {"device": device}, _PROBE_SECONDS, {"KERAS_BACKEND": each})
        except RunFailedError as error:
            reasons = [str(error)]
        else:
            return each, seen
    raise RunFailedError(f"no backend computes on this device, --device cpu measures without a GPU: {reasons[0]}")


def begin(arguments: argparse.Namespace, source: Figures) -> Figures:
    """Return the rows of the output file, or none. Raises RunFailedError if they are another machine's."""
    new: Figures = {**source, **{part: [] for part in KEYS}}
    if arguments.output is None or not arguments.output.exists():
        return new
    found: Figures = json.loads(arguments.output.read_text())
    for name in ("device", "backend", "gpus", "versions", "machine"):
        if found.get(name) != new[name]:
            raise RunFailedError(f"{arguments.output} was measured elsewhere: {name} is {found.get(name)} there")
    return found


def jobs(arguments: argparse.Namespace) -> list[Job]:
    """Return all jobs, the most telling ones first: float32, the pipeline, other precisions."""
    learners = [
        learner_job(arguments, network, precision)
        for precision in arguments.precisions
        for network in arguments.networks
    ]
    first = len(arguments.networks)
    learners = learners if "learner" in arguments.parts else []
    pipelines = [
        pipeline_job(arguments, work, actors) for actors in sorted(arguments.actors) for work in arguments.works
    ]
    pipelines = pipelines if "pipeline" in arguments.parts else []
    return [*learners[:first], *pipelines, *learners[first:]]


def learner_job(arguments: argparse.Namespace, network: str, precision: str) -> Job:
    sizes = sorted(arguments.minibatch_sizes or MINIBATCH_SIZES[arguments.device])
    rows = -(-(arguments.rows or sizes[-1]) // STEPS) * STEPS
    own = {"network": network, "precision": precision}
    request = {**own, "device": arguments.device, "rows": rows, "seconds": arguments.seconds}
    updates = [("updates", {**own, "minibatch_size": size}) for size in sizes if size <= rows]
    return Job("learner", request, [("agreement", own), *updates])


def pipeline_job(arguments: argparse.Namespace, work: str, num_actors: int) -> Job:
    own = {"work": work, "num_actors": num_actors}
    devices = ["cpu"] if arguments.device == "cpu" else ["gpu", "cpu"]
    request = {**own, "devices": devices, "rounds": arguments.rounds, "seconds": arguments.seconds}
    return Job("pipeline", request, [("pipeline", own)])


def measure(job: Job, found: Figures, output: Path | None, environment: dict[str, str], end: float) -> None:
    """Measure the rows of a job that aren't there yet; a row that ends its child says why, and the others follow."""
    missing = [(part, own) for part, own in job.rows if not is_known(found, part, own)]
    if job.kind == "pipeline" and missing and job.request["num_actors"] > available_cores():
        store_row(found, "pipeline", {**missing.pop()[1], "skipped": f"{available_cores()} cores"}, output)
    while missing:
        seconds = min(MAX_CHILD_SECONDS, end - time.monotonic())
        if seconds <= 0:
            tell(f"no time is left for {job.request}")
            return
        tell(f"{job.kind}: {', '.join(str(value) for value in missing[0][1].values())} ...")
        try:
            for row in child_rows(job.kind, request_of(job, missing), seconds, environment):
                part, own = next((part, own) for part, own in missing if is_row(row, part, own))
                store_row(found, part, {**own, **row}, output)
                if part != "pipeline":
                    missing.remove((part, own))
            return
        except RunFailedError as error:
            if end - time.monotonic() <= 0:
                tell(f"no time was left: {error}")
                return
            part, own = missing.pop(0)
            store_row(found, part, {**find_row(found, part, own), **own, "failed": str(error)}, output)


def request_of(job: Job, missing: Sequence[tuple[str, Figures]]) -> Figures:
    """Return a child's arguments, for the rows that are missing."""
    if job.kind == "pipeline":
        return job.request
    sizes = [own["minibatch_size"] for part, own in missing if part == "updates"]
    return {**job.request, "minibatch_sizes": sizes, "agree": len(sizes) < len(missing)}


def is_row(row: Figures, part: str, own: Figures) -> bool:
    """Return whether a child's row is the one with these keys."""
    return row.get("part", "pipeline") == part and row.get("minibatch_size") == own.get("minibatch_size")


def is_known(found: Figures, part: str, own: Figures) -> bool:
    row = find_row(found, part, own)
    return bool(row) and "failed" not in row


def find_row(found: Figures, part: str, own: Figures) -> Figures:
    """Return the row with these keys, or an empty one."""
    return next((row for row in found[part] if all(row[name] == own[name] for name in KEYS[part])), {})


def store_row(found: Figures, part: str, row: Figures, output: Path | None) -> None:
    """Add a row, or replace the one with the same keys, and write the file and the table."""
    row.pop("part", None)
    before = find_row(found, part, row)
    found[part] = [*(each for each in found[part] if each is not before), row]
    if output:
        partial = output.with_suffix(".partial")
        partial.write_text(json.dumps(found, indent=1) + "\n")
        partial.replace(output)
        output.with_suffix(".md").write_text("\n".join(page(found)) + "\n")


def child_rows(kind: str, request: Figures, seconds: float, environment: dict[str, str]) -> Iterator[Figures]:
    """Yield what a child prints, as soon as it does. Raises RunFailedError if it fails or takes longer."""
    own = child_environment(changes={"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **environment})
    command = [sys.executable, "-P", "-m", "benchmarks.gpu.child", kind, json.dumps(request)]
    with tempfile.TemporaryDirectory() as folder:
        child = Child(command, Path(folder, "errors"), own, stdout=subprocess.PIPE)
        timer = threading.Timer(seconds, child.end)
        timer.start()
        try:
            yield from map(json.loads, child.process.stdout or ())
            child.process.wait()
        finally:
            timer.cancel()
            child.end()
            child.process.communicate()
        if code := child.process.returncode:
            is_late = time.monotonic() > child.started + seconds
            lines = child.output.read_text(errors="replace").strip().splitlines() or [f"exit code {code}"]
            raise RunFailedError(f"it hadn't ended after {seconds:.0f} s" if is_late else lines[-1])
