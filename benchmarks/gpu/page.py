"""The page of an accelerator's figures, in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from benchmarks.gpu.works import NETWORKS, PIPELINES, PRECISIONS
from benchmarks.harness import Figures, table

NOTHING = "-"
TARGET = 1e-4
"""The greatest difference between the log-probabilities of actors and learner in float32."""

CPU_NOTE = (
    "The CPU's rows are JAX's, too. There its convolutions take 1.9 to 2.8 times as long as TensorFlow's, so the CPU's "
    "own best is on TensorFlow."
)


def page(found: Figures) -> list[str]:
    """Return the lines of the page: what was measured on, then a table for each part that has rows."""
    tables = {"Updates": updates, "Agreement": agreement, "The whole pipeline": pipeline}
    title = f"# Speed of updates and of whole runs on {', '.join(found['gpus']) or 'a CPU'}"
    lines = [title, "", f"`{found['command']}`, {found['date']}.", "", *machine(found)]
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
        NOTHING if row["peak_bytes"] is None else f"{row['peak_bytes'] / 1e6:,.0f}",
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
    header = ["environment", "actors", "learner on", "acting on", "steps/s", "learning", "acting", "GPU busy", "rounds"]
    order = [list(PIPELINES), ["gpu", "cpu"], ["actors", "device"]]
    keys = ["work", "device", "acting"]
    rows = sorted(
        found["pipeline"],
        key=lambda row: (row["num_actors"], *(names.index(row[key]) for names, key in zip(order, keys, strict=True))),
    )
    lines = table(header, map(_pipeline, rows)) if rows else []
    if found["backend"] == "jax" and any(row["device"] == "cpu" for row in rows):
        lines += ["", CPU_NOTE]
    return lines


def _pipeline(row: Figures) -> list[str]:
    device = {"gpu": "GPU", "cpu": "CPU"}[row["device"]]
    place = "the actors' cores" if row["acting"] == "actors" else f"the {device}"
    given = [row["precision"]] if "precision" in row else []
    given += [f"{row['envs_per_actor']} each"] if "envs_per_actor" in row else []
    keys = [", ".join([PIPELINES[row["work"]].env, *given]), str(row["num_actors"]), device, place]
    if "steps_per_second" not in row:
        return [*keys, (row.get("skipped") or row["failed"]).replace("|", "/"), *[NOTHING] * 4]
    shares = [percent(row[name]) for name in ("learning_share", "acting_share", "gpu_busy")]
    return [*keys, f"{row['steps_per_second']:,.0f}", *shares, str(len(row["rounds_steps_per_second"]))]


def percent(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.0%}"


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
