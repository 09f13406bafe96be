"""The page of an accelerator's figures, in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from benchmarks.gpu.works import NETWORKS, PIPELINES, PRECISIONS
from benchmarks.harness import Found, table

NOTHING = "-"
TARGET = 1e-4
"""The greatest difference between the log-probabilities of actors and learner in float32."""


def page(found: Found) -> list[str]:
    """Return the lines of the page: what was measured on, then a table for each part that has rows."""
    tables = {"Updates": updates, "Agreement": agreement, "The whole pipeline": pipeline}
    lines = ["# An accelerator", "", f"`{found['command']}`, {found['date']}.", "", *machine(found)]
    for title, make in tables.items():
        if body := make(found):
            lines += ["", f"## {title}", "", *body]
    return lines


def machine(found: Found) -> Iterator[str]:
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    cpu = f"{found['machine'].get('cores', '?')} cores of {found['machine'].get('cpu', '?')}"
    yield f"{', '.join(found['gpus']) or 'No GPU'}; {cpu}; {found['backend']}; {versions}."
    default = {True: "may use TF32", False: "are in full float32", None: "are left to the backend"}[found["uses_tf32"]]
    yield f"By default, products of float32 {default} on this device."


def updates(found: Found) -> list[str]:
    header = ["network", "precision", "minibatch", "samples/s", "update, ms", "copied ahead, ms", "copy, ms"]
    header += ["first update, s", "GPU busy", "GPU memory, MB"]
    rows = sorted_by(found["updates"], NETWORKS, PRECISIONS)
    return table(header, map(_update, rows)) if rows else []


def _update(row: Found) -> list[str]:
    keys = [NETWORKS[row["network"]].title, PRECISIONS[row["precision"]].title, f"{row['minibatch_size']:,}"]
    if "failed" in row:
        return [*keys, row["failed"].replace("|", "/"), *[NOTHING] * 6]
    seconds = ("update_seconds", "update_seconds_copied_ahead", "transfer_seconds")
    return [
        *keys,
        f"{row['samples_per_second']:,.0f}",
        *(f"{1e3 * row[name]:.2f}" for name in seconds),
        f"{row['first_update_seconds']:.1f}",
        share(row["gpu_busy"]),
        optional(row["peak_bytes"], lambda size: f"{size / 1e6:,.0f}"),
    ]


def agreement(found: Found) -> list[str]:
    rows = sorted_by(found["agreement"], NETWORKS, PRECISIONS)
    header = ["network", "precision", "greatest difference", "median", f"at most {TARGET:g}"]
    return table(header, map(_agreement, rows)) if rows else []


def _agreement(row: Found) -> list[str]:
    keys = [NETWORKS[row["network"]].title, PRECISIONS[row["precision"]].title]
    if "failed" in row:
        return [*keys, row["failed"].replace("|", "/"), NOTHING, NOTHING]
    return [*keys, f"{row['difference']:.2g}", f"{row['median']:.2g}", "yes" if row["difference"] <= TARGET else "no"]


def pipeline(found: Found) -> list[str]:
    header = ["environment", "actors", "GPU, steps/s", "CPU, steps/s", "GPU / CPU", "GPU: learning", "CPU: learning"]
    rows = sorted(found["pipeline"], key=lambda row: (list(PIPELINES).index(row["work"]), row["num_actors"]))
    return table([*header, "GPU busy", "rounds"], map(_pipeline, rows)) if rows else []


def _pipeline(row: Found) -> list[str]:
    keys = [PIPELINES[row["work"]].env, str(row["num_actors"])]
    if "rounds" not in row:
        return [*keys, (row.get("skipped") or row["failed"]).replace("|", "/"), *[NOTHING] * 6]
    gpu, cpu = row.get("gpu", {}), row.get("cpu", {})
    speeds = [each.get("steps_per_second") for each in (gpu, cpu)]
    ratio = f"{speeds[0] / speeds[1]:.2f}" if all(speeds) else NOTHING
    rates = [optional(speed, lambda value: f"{value:,.0f}") for speed in speeds]
    learning = [share(each.get("learning")) for each in (gpu, cpu)]
    return [*keys, *rates, ratio, *learning, share(gpu.get("gpu_busy")), str(row["rounds"])]


def share(value: float | None) -> str:
    return optional(value, lambda part: f"{part:.0%}")


def optional(value: Any, text: Callable[[Any], str]) -> str:
    return NOTHING if value is None else text(value)


def sorted_by(rows: Iterable[Found], *orders: Iterable[str]) -> list[Found]:
    """Return rows by network, precision and size, the first two in the orders of the works."""
    networks, precisions = map(list, orders)
    return sorted(
        rows,
        key=lambda row: (
            networks.index(row["network"]),
            precisions.index(row["precision"]),
            row.get("minibatch_size", 0),
        ),
    )
