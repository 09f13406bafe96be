"""An accelerator: updates by network, precision and minibatch, the whole pipeline, agreement with the actors.

    scripts/measure gpu --output benchmarks/gpu/gpu.json      # nine minutes; a table is written beside it
    scripts/measure gpu --device cpu --smoke                  # a rehearsal without a GPU: tiny sizes, every row
    scripts/measure gpu-pack --output gpu-pack.tar.xz         # the same for a machine without network: pack.py

The parts follow one another: updates of small networks, the whole pipeline, updates of IMPALA, the pipeline on the CPU.
Each has a share of the time, and a part that ends early leaves its rest to the next ones. Each row is written as soon
as it is measured. Rows that weren't measured in time say so. If the file is there already, only the rows that it
doesn't have are measured.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from actor_learner.config.pool_checks import ACTING
from actor_learner.system.machine import available_cores
from benchmarks.gpu.page import page
from benchmarks.gpu.works import ACTORS, NETWORKS, PIPELINES, PRECISIONS, STEPS, add_pipeline_flags
from benchmarks.harness import Figures, RunFailedError, child_environment, layout, make_parser, origin, tell
from benchmarks.processes import Child

MINIBATCH_SIZES = {"gpu": [256, 2048, 8192], "cpu": [64, 256]}
KEYS = {
    "updates": ("network", "precision", "minibatch_size"),
    "agreement": ("network", "precision"),
    "pipeline": ("work", "num_actors", "device", "acting", "precision", "envs_per_actor"),
}
"""What tells the rows of a table from each other; the last two only where they were given."""

LAST_NETWORK = "impala"  # whose programs take longest to compile
PROBE_SECONDS = 120.0

T = TypeVar("T")


class Job(NamedTuple):
    """A child: the kind, its arguments, and the keys of the rows that it gives, in their order."""

    kind: str
    request: Figures
    rows: list[tuple[str, Figures]]


class Part(NamedTuple):
    """Jobs, and their share of the time, in relation to the other parts' shares."""

    title: str
    share: float
    jobs: list[Job]


class Limits(NamedTuple):
    """The end of a part by `time.monotonic`, and the seconds that a row may take, its process's start included."""

    end: float
    row_seconds: float


def main(words: Sequence[str] | None = None) -> None:
    parser = _make_parser()
    arguments = parser.parse_args(words)
    if arguments.smoke:
        arguments.seconds = 0.1
    started = time.monotonic()
    backend, seen = choose_backend(arguments.backend, arguments.device)
    found = begin(arguments, {**origin(parser, words), "device": arguments.device, **seen})
    for part, end in with_ends(parts(arguments), started, 60 * arguments.minutes):
        for job in part.jobs:
            limits = Limits(end, arguments.row_seconds)
            measure(job, found, arguments.output, {"KERAS_BACKEND": backend}, limits)
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
        rounds=2,
        seconds=2.0,
        minutes=9.0,
    )
    several: dict[str, Any] = {"nargs": "+", "type": int, "metavar": "N"}
    parser.add_argument("--minibatch-sizes", **several, help=f"rows of a minibatch (default: {MINIBATCH_SIZES})")
    parser.add_argument("--rows", type=int, metavar="N", help="rows of a batch (default: of the largest minibatch)")
    parser.add_argument("--device", choices=["gpu", "cpu"], default="gpu", help="of the learner (default: gpu)")
    parser.add_argument("--backend", choices=["jax", "tensorflow"], help="by default the first that sees the device")
    parser.add_argument("--parts", nargs="+", choices=["learner", "pipeline"], default=["learner", "pipeline"])
    help_of_rows = "the longest time for a row, its process's start included (default: 100)"
    parser.add_argument("--row-seconds", type=float, default=100.0, metavar="S", help=help_of_rows)
    add_pipeline_flags(parser)
    help_of_smoke = "measure every row with tiny sizes, and any number of actors on any number of cores"
    parser.add_argument("--smoke", action="store_true", help=help_of_smoke)
    return parser


def choose_backend(name: str | None, device: str) -> tuple[str, Figures]:
    """Return the first installed backend that sees the device, and what it says of it. Raises RunFailedError."""
    names = [name] if name else [each for each in ("jax", "tensorflow") if find_spec(each)]
    reasons = ["neither JAX nor TensorFlow is installed"]
    for each in names:
        try:
            (seen,) = child_rows("describe", {"device": device}, {"KERAS_BACKEND": each}, PROBE_SECONDS)
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


def parts(arguments: argparse.Namespace) -> list[Part]:
    """Return the parts in their order, without those that have nothing to do."""

    def learners(*networks: str) -> list[Job]:
        return [
            learner_job(arguments, network, precision)
            for precision in arguments.precisions
            for network in networks
            if network in arguments.networks and precision in NETWORKS[network].precisions
        ]

    def pipelines(device: str, actors: Sequence[int], acting: Sequence[str]) -> list[Job]:
        return [pipeline_job(arguments, work, count, device, acting) for count in actors for work in arguments.works]

    small = [network for network in NETWORKS if network != LAST_NETWORK]
    found = [
        Part("updates", 0.45, learners(*small)),
        Part("the pipeline", 0.38, pipelines(arguments.device, arguments.actors, ACTING)),
        Part(f"updates of {LAST_NETWORK}", 0.12, learners(LAST_NETWORK)),
        Part("the pipeline on the CPU", 0.05, pipelines("cpu", [min(arguments.actors)], ACTING[:1])),
    ]
    wanted = {"learner": found[0::2], "pipeline": found[1::2]}
    return [part for part in found if part.jobs and any(part in wanted[name] for name in arguments.parts)]


def with_ends(parts: Sequence[Part], started: float, seconds: float) -> Iterator[tuple[Part, float]]:
    """Yield each part and the time at which it ends: parts share the seconds since the start."""
    so_far, total = 0.0, sum(part.share for part in parts)
    for part in parts:
        so_far += part.share
        yield part, started + seconds * so_far / total


def learner_job(arguments: argparse.Namespace, network: str, precision: str) -> Job:
    usual = [STEPS] if arguments.smoke else MINIBATCH_SIZES[arguments.device]
    sizes = sorted(arguments.minibatch_sizes or usual)
    rows = -(-(arguments.rows or sizes[-1]) // STEPS) * STEPS
    own = {"network": network, "precision": precision}
    request = {**own, "device": arguments.device, "rows": rows, "seconds": arguments.seconds}
    updates = [("updates", {**own, "minibatch_size": size}) for size in sizes if size <= rows]
    return Job("learner", request, [("agreement", own), *updates])


def pipeline_job(arguments: argparse.Namespace, work: str, num_actors: int, device: str, acting: Sequence[str]) -> Job:
    own = {"work": work, "num_actors": num_actors, "device": device}
    given = {"precision": arguments.precision, "envs_per_actor": arguments.envs_per_actor}
    if device == "cpu" and arguments.precision == "tf32":  # which it doesn't have
        given["precision"] = "float32"
    own |= {name: value for name, value in given.items() if value is not None}
    rounds = 1 if arguments.smoke or device != arguments.device else arguments.rounds
    request = {**own, "rounds": rounds, "seconds": arguments.seconds, "tiny": arguments.smoke}
    return Job("pipeline", request, [("pipeline", {**own, "acting": place}) for place in acting])


def measure(job: Job, found: Figures, output: Path | None, environment: dict[str, str], limits: Limits) -> None:
    """Measure the rows of a job that aren't there yet; a row that ends its child says why, and the others follow."""
    missing = [(part, own) for part, own in job.rows if "failed" in find_row(found, part, own)]
    if job.kind == "pipeline" and not job.request["tiny"] and job.request["num_actors"] > available_cores():
        for part, own in missing:
            store_row(found, part, {**own, "skipped": f"{available_cores()} cores"}, output)
        return
    while missing:
        late = f"not begun: no time was left for {missing[0][0]}"
        try:
            if (seconds := limits.end - time.monotonic()) > 0:
                tell(f"{job.kind}: {', '.join(str(value) for value in missing[0][1].values())} ...")
                late = "ended: the time for this part was over"
                for row in child_rows(job.kind, request_of(job, missing), environment, limits.row_seconds, seconds):
                    part, own = next((part, own) for part, own in missing if is_row(row, part, own))
                    store_row(found, part, {**own, **row}, output)
                    missing.remove((part, own))
                return
        except RunFailedError as error:
            late = str(error) if time.monotonic() < limits.end else late
        part, own = missing.pop(0)
        tell(late)
        store_row(found, part, {**own, "failed": late}, output)


def request_of(job: Job, missing: Sequence[tuple[str, Figures]]) -> Figures:
    """Return a child's arguments, for the rows that are missing."""
    if job.kind == "pipeline":
        return {**job.request, "acting": [own["acting"] for _, own in missing]}
    sizes = [own["minibatch_size"] for part, own in missing if part == "updates"]
    return {**job.request, "minibatch_sizes": sizes, "agree": len(sizes) < len(missing)}


def is_row(row: Figures, part: str, own: Figures) -> bool:
    """Return whether a child's row is the one with these keys; the child leaves out those that all of its rows have."""
    return row["part"] == part and all(row.get(name, own.get(name)) == own.get(name) for name in KEYS[part])


def find_row(found: Figures, part: str, own: Figures) -> Figures:
    """Return the row with these keys, or one that says that it isn't there."""
    nothing = {"failed": "not measured yet"}
    return next((row for row in found[part] if all(row.get(name) == own.get(name) for name in KEYS[part])), nothing)


def store_row(found: Figures, part: str, row: Figures, output: Path | None) -> None:
    """Add a row, or replace the one with the same keys, and write the file and the table."""
    row.pop("part", None)
    before = find_row(found, part, row)
    found[part] = [*(each for each in found[part] if each is not before), row]
    if output:
        partial = output.with_suffix(".partial")
        partial.write_text(layout(found) + "\n")
        partial.replace(output)
        output.with_suffix(".md").write_text("\n".join(page(found)) + "\n")


def child_rows(
    kind: str, request: Figures, environment: dict[str, str], row_seconds: float, seconds: float = math.inf
) -> Iterator[Figures]:
    """Yield what a child prints, as soon as it does. Raises RunFailedError if it fails, or takes longer.

    row_seconds: for each row. seconds: for all of them.
    """
    own = child_environment(changes={"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **environment})
    command = [sys.executable, "-P", "-m", "benchmarks.gpu.child", kind, json.dumps(request)]
    with tempfile.TemporaryDirectory() as folder:
        child = Child(command, Path(folder, "errors"), own, stdout=subprocess.PIPE)
        try:
            lines = iter(child.process.stdout or ())
            yield from map(json.loads, in_time(lines, child.end, row_seconds, child.started + seconds))
            child.process.wait()
        finally:
            child.end()
            child.process.communicate()
        if code := child.process.returncode:
            printed = child.output.read_text(errors="replace").strip().splitlines() or [f"exit code {code}"]
            raise RunFailedError(printed[-1])


def in_time(lines: Iterator[T], stop: Callable[[], None], row_seconds: float, end: float) -> Iterator[T]:
    """Yield lines. If one takes so many seconds, or until the end, call `stop`, which ends them; raise RunFailedError.

    end: by `time.monotonic`.
    """
    late = threading.Event()

    def end_lines() -> None:
        late.set()
        stop()

    while True:
        seconds = max(0.0, min(row_seconds, end - time.monotonic()))
        watch = threading.Timer(seconds, end_lines)
        watch.start()
        try:
            line = next(lines, None)
        finally:
            watch.cancel()
        if late.is_set():
            raise RunFailedError(f"ended: it took longer than {seconds:.0f} s")
        if line is None:
            return
        yield line
