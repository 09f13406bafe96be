"""The figures of the comparison with other libraries as ratios, and as a page of Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.harness import table
from benchmarks.peers.libraries import OURS, PEERS

Figures = Mapping[str, Any]
Runs = Sequence[Mapping[str, Any] | None]
TITLES = {key: peer.title for key, peer in {**OURS, **PEERS}.items()}


class Spread(NamedTuple):
    """The middle and the range of some figures. With 5, the range holds the median of all with 94%."""

    median: float
    least: float
    largest: float

    @classmethod
    def of(cls, figures: Sequence[float]) -> Spread | None:
        """Return the spread of figures, None without any."""
        return cls(statistics.median(figures), min(figures), max(figures)) if figures else None


def _format(spread: Spread | None, form: str) -> str:
    """Return `median (least to largest)`, empty without a spread."""
    return "{} ({} to {})".format(*(format(figure, form) for figure in spread)) if spread else ""


def speeds(runs: Runs) -> Spread | None:
    return Spread.of([run["speed"] for run in runs if run])


def ratio(ours: Runs, peer: Runs) -> Spread | None:
    """Return ours / the peer's, round by round, without rounds in which one of them failed."""
    return Spread.of([a["speed"] / b["speed"] for a, b in zip(ours, peer, strict=True) if a and b])


def fastest(runs: Mapping[str, Runs], among: Iterable[str]) -> str | None:
    """Return the key in `among` with the highest median speed."""
    known = {key: found.median for key in among if (found := speeds(runs.get(key, ())))}
    return max(known, key=lambda key: known[key]) if known else None


def page(found: Figures) -> str:
    works = found.get("works", {})
    on_jax = any("--backend jax" in work["command"] for work in works.values())
    title = f"Speed beside other libraries{', on JAX' if on_jax else ''}: {', '.join(works)}"
    lines = [f"# {title}", "", *_about(found), "", *summary(works)]
    for name, work in works.items():
        lines += ["", f"## {name}: {shape(work['work'])}", "", *_work_table(work)]
        if notes := [f"- {TITLES[key]} failed: `{why}`" for key, why in work["failures"].items()]:
            lines += ["", *notes]
    return "\n".join(lines) + "\n"


def shape(work: Mapping[str, Any]) -> str:
    precision = work.get("changes", {}).get("precision")
    return (
        f"{work['env']}, {work['envs']} envs x {work['unroll_length']} steps, minibatch {work['minibatch_size']}, "
        f"{work['epochs']} epoch{'s' if work['epochs'] > 1 else ''}{f', ours in {precision}' if precision else ''}"
    )


def summary(works: Mapping[str, Figures]) -> list[str]:
    """Return a row for each work: ours at its faster lag, beside each peer."""
    columns = [key for key in PEERS if any(key in work["runs"] for work in works.values())]
    rows = []
    for work in works.values():
        runs = work["runs"]
        ours, peer = fastest(runs, OURS), fastest(runs, PEERS)
        if ours is None:
            continue
        ratios = [ratio(runs[ours], runs[key]) if key in runs else None for key in columns]
        speed = f"{speeds(runs[ours]).median:,.0f} ({TITLES[ours].removeprefix('ours, ')})"
        cells = [f"{found.median:.1f}x" if found else "" for found in ratios]
        rows.append((shape(work["work"]), speed, TITLES[peer] if peer else "", *cells))
    return table(("work", "ours, steps/s", "fastest peer", *(f"ours / {TITLES[key]}" for key in columns)), rows)


def _about(found: Figures) -> list[str]:
    parts = found.get("works", {}).values()
    missing = found.get("not_installed", {})
    dates, machines, commands = ({part[name] for part in parts} for name in ("date", "machine", "command"))
    return [
        f"{', '.join(sorted(dates))}; {', '.join(machines)}.",
        f"Made by {', '.join(f'`{command}`' for command in sorted(commands))}.",
        "",
        "- **Work**: environment, batch, minibatch and epochs are the same unless stated otherwise. Each library runs",
        "  at its fastest setting, which short runs choose.",
        "- **Steps/s**: env steps per second after the first two updates, for some seconds of each run. Figures are",
        "  medians (least to largest) of the rounds; the order within a round is random.",
        "- **Ratios** are of two runs of the same round: the rate of ours divided by the peer's.",
        "- **Start-up**: from the start of the process to the end of the first update.",
        "- **Memory** is in MB of 10^6 bytes. `worker`: a worker process, with its share of shared pages (in",
        "  parentheses its whole resident memory). `in all`: all processes together.",
        "",
        "The libraries:",
        "",
        *(_about_peer(key, found) for key in TITLES if key in OURS or key in found.get("versions", {})),
        *(f"- {TITLES[key]} is left out, because it can't be installed: {why}" for key, why in missing.items()),
    ]


def _about_peer(key: str, found: Figures) -> str:
    """Return its versions and clock, and the memory of a worker process that it only has on demand."""
    peer = {**OURS, **PEERS}[key]
    installed = found["versions"].get(key if key in PEERS else "ours", {})
    versions = ", ".join(f"{name} {version}" for name, version in installed.items())
    parts = [f"- {peer.title}: {versions}; clock: {peer.clock}"]
    if memory := found.get("worker_memory", {}).get(key, {}).get("worker_pss"):
        parts.append(f"a worker process, on demand, {memory:.0f} MB")
    return "; ".join([*parts, *filter(None, [peer.note])])


def _work_table(work: Figures) -> list[str]:
    runs = {key: runs for key, runs in work["runs"].items() if speeds(runs)}
    rows = []
    for key in sorted(runs, key=lambda key: -speeds(runs[key]).median):
        done = [run for run in runs[key] if run]
        memory, settings = done[-1]["memory"], work["settings"][key]
        ratios = [ratio(runs[lag], runs[key]) if lag in runs and key not in OURS else None for lag in ("lag0", "lag1")]
        names = (f"{count} {part if count > 1 else part.removesuffix('s')}" for part, count in settings.items())
        rows.append(
            (
                TITLES[key],
                _format(speeds(runs[key]), ",.0f"),
                ", ".join(names),
                *(_format(found, ".2f") for found in ratios),
                f"{statistics.median(run['start_up'] for run in done):.1f}",
                f"{memory['worker_pss']:.0f} ({memory['worker_rss']:.0f})" if "worker_pss" in memory else "",
                f"{memory['all_pss']:,.0f}" if memory else "",
            )
        )
    header = ("", "steps/s", "setting", "lag 0 / peer", "lag 1 / peer", "start-up, s", "worker", "in all")
    return table(header, rows)
