"""The page of an accelerator's figures, in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from benchmarks.gpu.works import NETWORKS, PIPELINES, PRECISIONS
from benchmarks.harness import Figures, table

NOTHING = "-"
TARGET = 1e-4
"""The greatest difference between the log-probabilities of actors and learner in float32."""


def page(found: Figures) -> list[str]:
    """Return the lines of the page: what was measured on, then a table for each part that has rows."""
    tables = {"Updates": updates, "Agreement": agreement, "The whole pipeline": pipeline}
    lines = ["# An accelerator", "", f"`{found['command']}`, {found['date']}.", "", *machine(found)]
    for title, make in tables.items():
        if body := make(found):
            lines += ["", f"## {title}", "", *body]
    return lines


def machine(found: Figures) -> Iterator[str]:
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    cpu = f"{found['machine'].get('cores', '?')} cores of {found['machine'].get('cpu', '?')}"
    yield f"{', '.join(found['gpus']) or 'No GPU'}; {cpu}; {found['backend']}; {versions}."
    default = {True: "may use TF32", False: "are in full float32", None: "are left to the backend"}[found["uses_tf32"]]
    yield f"By default, products of float32 {default} on this device."


def updates(found: Figures) -> list[str]:
    header = ["network", "precision", "minibatch", "samples/s", "update, ms", "copied ahead, ms", "copy, ms"]
    header += ["first update, s", "GPU busy", "GPU memory, MB"]
    rows = sort_rows(found["updates"], NETWORKS, PRECISIONS)
    return table(header, map(_update, rows)) if rows else []


def _update(row: Figures) -> list[str]:
    keys = [NETWORKS[row["network"]].title, PRECISIONS[row["precision"]].title, f"{row['minibatch_size']:,}"]
    if "failed" in row:
        return [*keys, row["failed"].replace("|", "/"), *[NOTHING] * 6]
    seconds = ("update_seconds", "update_seconds_copied_ahead", "transfer_seconds")
    return [
        *keys,
        f"{row['samples_per_second']:,.0f}",
        *(f"{1e3 * row[name]:.2f}" for name in seconds),
        f"{row['first_update_seconds']:.1f}",
        percent(row["gpu_busy"]),
        text_or_nothing(row["peak_bytes"], lambda size: f"{size / 1e6:,.0f}"),
    ]


def agreement(found: Figures) -> list[str]:
    rows = sort_rows(found["agreement"], NETWORKS, PRECISIONS)
    header = ["network", "precision", "greatest difference", "median", f"at most {TARGET:g}"]
    return table(header, map(_agreement, rows)) if rows else []


def _agreement(row: Figures) -> list[str]:
    keys = [NETWORKS[row["network"]].title, PRECISIONS[row["precision"]].title]
    if "failed" in row:
        return [*keys, row["failed"].replace("|", "/"), NOTHING, NOTHING]
    return [*keys, f"{row['difference']:.2g}", f"{row['median']:.2g}", "yes" if row["difference"] <= TARGET else "no"]


def pipeline(found: Figures) -> list[str]:
    header = ["environment", "actors", "GPU, steps/s", "CPU, steps/s", "GPU / CPU", "GPU: learning", "CPU: learning"]
    rows = sorted(found["pipeline"], key=lambda row: (list(PIPELINES).index(row["work"]), row["num_actors"]))
    return table([*header, "GPU busy", "rounds"], map(_pipeline, rows)) if rows else []


def _pipeline(row: Figures) -> list[str]:
    keys = [PIPELINES[row["work"]].env, str(row["num_actors"])]
    if "rounds" not in row:
        return [*keys, (row.get("skipped") or row["failed"]).replace("|", "/"), *[NOTHING] * 6]
    gpu, cpu = row.get("gpu", {}), row.get("cpu", {})
    speeds = [each.get("steps_per_second") for each in (gpu, cpu)]
    ratio = f"{speeds[0] / speeds[1]:.2f}" if all(speeds) else NOTHING
    rates = [text_or_nothing(speed, lambda value: f"{value:,.0f}") for speed in speeds]
    learning = [percent(each.get("learning")) for each in (gpu, cpu)]
    return [*keys, *rates, ratio, *learning, percent(gpu.get("gpu_busy")), str(row["rounds"])]


def percent(value: float | None) -> str:
    return text_or_nothing(value, lambda part: f"{part:.0%}")


def text_or_nothing(value: Any, text: Callable[[Any], str]) -> str:
    return NOTHING if value is None else text(value)


def sort_rows(rows: Iterable[Figures], *orders: Iterable[str]) -> list[Figures]:
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
