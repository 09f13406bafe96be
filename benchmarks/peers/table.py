"""The figures of `compare_peers` as ratios and as a page of Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.peers.known import OURS, PEERS

Found = Mapping[str, Any]
Runs = Sequence[Mapping[str, Any] | None]


class Spread(NamedTuple):
    """Of some figures. Of 5, their least and their largest hold the median of all with 94%."""

    median: float
    least: float
    largest: float

    @classmethod
    def of(cls, figures: Sequence[float]) -> Spread | None:
        """None where there are no figures."""
        return cls(statistics.median(figures), min(figures), max(figures)) if figures else None

    def as_text(self, form: str) -> str:
        """`median (least to largest)`."""
        middle, least, largest = (format(figure, form) for figure in self)
        return f"{middle} ({least} to {largest})"


def speeds(runs: Runs) -> Spread | None:
    """Env steps per second."""
    return Spread.of([run["speed"] for run in runs if run])


def ratio(ours: Runs, peer: Runs) -> Spread | None:
    """Ours / the peer's, round by round; rounds that one of them failed in are left out."""
    return Spread.of([a["speed"] / b["speed"] for a, b in zip(ours, peer, strict=True) if a and b])


def fastest(runs: Mapping[str, Runs], among: Sequence[str]) -> str | None:
    """Of `among`, whose median speed is highest."""
    known = {key: found.median for key in among if (found := speeds(runs.get(key, ())))}
    return max(known, key=lambda key: known[key]) if known else None


def table(found: Found) -> str:
    """The whole page."""
    works = found.get("works", {})
    lines = ["# Beside other libraries", "", *_about(found), "", *summary(works)]
    for name, work in works.items():
        lines += ["", f"## {name}: {shape(work['work'])}", "", *_work_table(work), *_footnotes(work)]
    if "solve" in found:
        lines += ["", *_solve_table(found["solve"])]
    return "\n".join(lines) + "\n"


def shape(work: Mapping[str, Any]) -> str:
    """A work in a few words."""
    return (
        f"{work['env']}, {work['envs']} envs x {work['unroll_length']} steps, minibatch {work['minibatch_size']}, "
        f"{work['epochs']} epoch{'s' if work['epochs'] > 1 else ''}"
    )


def summary(works: Mapping[str, Found]) -> list[str]:
    """A row for each work: ours at its faster lag, beside each peer; the smallest ratio is that to the fastest peer."""
    columns = [key for key in PEERS if any(key in work["runs"] for work in works.values())]
    lines = [
        "| work | ours, steps/s | fastest peer | " + " | ".join(f"ours / {PEERS[key].title}" for key in columns) + " |",
        "|" + "-|" * (3 + len(columns)),
    ]
    for work in works.values():
        runs = work["runs"]
        ours, peer = fastest(runs, list(OURS)), fastest(runs, list(PEERS))
        if ours is None:
            continue
        ratios = [ratio(runs[ours], runs[key]) if key in runs else None for key in columns]
        cells = (
            shape(work["work"]),
            f"{speeds(runs[ours]).median:,.0f} ({OURS[ours].title.removeprefix('ours, ')})",
            PEERS[peer].title if peer else "",
            *(f"{found.median:.1f}x" if found else "" for found in ratios),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _about(found: Found) -> list[str]:
    parts = [*found.get("works", {}).values(), *([found["solve"]] if "solve" in found else [])]
    return [
        f"{_all(part['date'] for part in parts)}; {_all(part['machine'] for part in parts)}.",
        f"Made by {_all('`' + part['command'] + '`' for part in parts)}.",
        "",
        "Env steps per second after the first two updates, for some seconds of each run; medians (least to largest) of",
        "the rounds, in random order within each; ratios are of a round's two runs. Environment, batch, minibatch and",
        "epochs are the same where nothing else is said; each runs at the fastest of its settings, which short runs",
        "found. Start-up: from the start of the process to the end of the first update. Memory in MB of 10^6 bytes:",
        "`worker`, of a worker process, its share of what processes share (and all that is resident); `in all`, of",
        "every process.",
        "",
        *(_about_one(key, found) for key in (*OURS, *PEERS) if key in OURS or key in found.get("versions", {})),
        *(
            f"- {_title(key)} is left out, it can't be installed: {why}"
            for key, why in found.get("not_installed", {}).items()
        ),
    ]


def _about_one(key: str, found: Found) -> str:
    """What it is, its clock, and the memory of a worker process where it only has some when asked."""
    peer = {**OURS, **PEERS}[key]
    versions = ", ".join(
        f"{name} {v}" for name, v in found["versions"].get(key if key in PEERS else "ours", {}).items()
    )
    parts = [f"- {peer.title}: {versions}; clock: {peer.clock}"]
    if memory := found.get("worker_memory", {}).get(key, {}).get("worker_pss"):
        parts.append(f"a worker process, where it is to have some, {memory:.0f} MB")
    return "; ".join([*parts, *filter(None, [peer.note])])


def _all(names: Iterable[str]) -> str:
    return ", ".join(sorted(set(names)))


def _title(key: str) -> str:
    return {**OURS, **PEERS}[key].title


def _work_table(work: Found) -> list[str]:
    runs = work["runs"]
    lines = [
        "| | steps/s | setting | lag 0 / it | lag 1 / it | start-up, s | worker | in all |",
        "|-|-|-|-|-|-|-|-|",
    ]
    for key in sorted((key for key in runs if speeds(runs[key])), key=lambda key: -speeds(runs[key]).median):
        done = [run for run in runs[key] if run]
        memory = done[-1]["memory"]
        ratios = [ratio(runs[lag], runs[key]) if lag in runs and key not in OURS else None for lag in ("lag0", "lag1")]
        cells = (
            _title(key),
            speeds(runs[key]).as_text(",.0f"),
            ", ".join(
                f"{count} {part if count > 1 else part.removesuffix('s')}"
                for part, count in work["settings"][key].items()
            ),
            *(found.as_text(".2f") if found else "" for found in ratios),
            f"{statistics.median(run['start_up'] for run in done):.1f}",
            f"{memory['worker_pss']:.0f} ({memory['worker_rss']:.0f})" if "worker_pss" in memory else "",
            f"{memory['all_pss']:,.0f}" if memory else "",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _footnotes(work: Found) -> list[str]:
    notes = [f"{_title(key)} failed: `{why}`" for key, why in work["failures"].items()]
    return ["", *(f"- {note}" for note in notes)] if notes else []


def _solve_table(solved: Found) -> list[str]:
    ours = [found for key in OURS if (found := _seconds(solved, key))]
    best = min((found.median for found in ours), default=None)
    lines = [
        f"## solve: CartPole-v1, from the start of the process to {solved['goal']} over the last 100 training episodes",
        "",
        "Each with its own settings: ours the preset, SB3 and SBX the Zoo's, CleanRL's those of ppo.py, Sample Factory",
        "and RLlib those of their examples. Median (least to largest) of the seeds that reached it; `it / ours` is of",
        "medians.",
        "",
        "| | seconds | env steps | seeds that reached it | it / ours |",
        "|-|-|-|-|-|",
    ]
    for key, seconds in solved["seconds"].items():
        found = _seconds(solved, key)
        steps = [count for count in solved["env_steps"][key] if count is not None]
        cells = (
            _title(key),
            found.as_text(".1f") if found else "",
            f"{statistics.median(steps):,.0f}" if steps else "",
            f"{len(steps)} of {len(seconds)}",
            f"{found.median / best:.2f}x" if found and best and key not in OURS else "",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines + _footnotes(solved)


def _seconds(solved: Found, key: str) -> Spread | None:
    return Spread.of([seconds for seconds in solved["seconds"].get(key, ()) if seconds is not None])
