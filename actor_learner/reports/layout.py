"""How a run looks at a terminal: a `RunStatus` laid out for the room that there is."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console, Group, RenderableType
from rich.constrain import Constrain
from rich.segment import SegmentLines
from rich.text import Text

from actor_learner.reports.status import SMOOTHING_SECONDS, Process, RunStatus, times

WIDE = 72
"""Columns from which on the shares of time of learner and actors stand side by side."""
WIDEST = 100

_MOST_PROCESSES = 12
"""Listed one by one; of more, the range is shown."""
_SPARKS = {False: "▁▂▃▄▅▆▇█", True: "_.-=+*%#"}  # the second where only ASCII can be written
_LEARNER_SHARES = {"learning": "learning", "collecting": "waiting", "between": "other"}
_ACTOR_SHARES = {"env": "env", "acting": "acting", "other": "copying", "waiting": "waiting"}
_LIMITS = {"learning": "learning", "environments": "env", "acting": "acting", "copying": "other"}
"""Which share a bottleneck's part is."""


def fit(console: Console, look: RunStatus, status: str = "", *, whole: bool = False) -> RenderableType:
    """The most detailed of three views that the terminal has room for; with `whole`, the first in any case."""
    width = min(console.width - 1, WIDEST)  # what fills the last column would be wrapped anew where a terminal shrinks
    ascii_only = console.options.ascii_only
    for detail in (2, 1, 0):
        view = layout(look, width, status, detail=detail, ascii_only=ascii_only)
        lines = console.render_lines(view, pad=False)
        if whole or len(lines) < console.height:
            break
    return SegmentLines(lines, new_lines=True)


def layout(
    look: RunStatus, width: int, status: str = "", *, detail: int = 2, ascii_only: bool = False
) -> RenderableType:
    """A run in at most `width` columns.

    detail: 2: all; 1: neither shares of time nor each process; 0: only how far it is.
    """
    separator = " | " if ascii_only else " · "
    parts: list[RenderableType] = [
        _title(look, separator, ascii_only),
        _bar(look, width, ascii_only),
        _flow(_steps(look), width, separator),
    ]
    if look.updates or look.undone:
        parts.append(_returns(look, width, ascii_only))
        if detail == 2:
            parts += ["", *_shares(look, width, ascii_only), ""]
        parts += filter(None, [_limit(look)])
        if detail == 2:
            parts += filter(None, [_processes(look.processes, width, ascii_only)])
        parts.append(_flow(_events(look), width, separator))
        if look.cause and detail == 2:
            parts.append(_cut(Text(f"last restart: {look.cause}", "yellow"), ascii_only))
    if status:
        parts.append(Text(status, "bold"))
    return Constrain(Group(*parts), width)


def sparkline(values: Sequence[float], width: int, *, ascii_only: bool = False) -> str:
    """Values from their lowest to their highest, in at most `width` characters."""
    if not values or width < 1:
        return ""
    count = min(width, len(values))
    edges = [index * len(values) // count for index in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    low, high = min(means), max(means)
    sparks = _SPARKS[ascii_only]
    scale = (len(sparks) - 1) / (high - low) if high > low else 0.0
    return "".join(sparks[round((mean - low) * scale)] for mean in means)


def _title(look: RunStatus, separator: str, ascii_only: bool) -> Text:
    rest = "".join(separator + name for name in (look.algorithm, look.run_dir) if name)
    title = Text.assemble((look.env, "bold"), (rest, "dim"))
    return _cut(title, ascii_only)


def _bar(look: RunStatus, width: int, ascii_only: bool) -> Text:
    done, rest = "=-" if ascii_only else "━─"
    room = width - 5
    full = round(look.part_done * room)
    style = "green" if look.part_done == 1 else "cyan"
    return Text.assemble((done * full, style), (rest * (room - full), "dim"), (f"{look.part_done:5.0%}", "bold"))


def _steps(look: RunStatus) -> list[Text]:
    items = [f"{look.env_steps:,} of {look.total_steps:,} steps"]
    if not math.isnan(look.speed):
        items.append(f"{look.speed:,.0f} steps/s")
    if look.updates:
        items.append(f"{look.updates:,} update{_plural(look.updates)}")
    return [Text(item) for item in [*items, *times(look)]]


def _returns(look: RunStatus, width: int, ascii_only: bool) -> RenderableType:
    if math.isnan(look.episode_return):
        return Text("return   no episode has ended yet", "dim")
    low, high = (f"{value:,.1f}" for value in (min(look.returns), max(look.returns)))
    head, tail = Text("return   "), Text(f"  {low} to {high}", "dim")
    head.append(f"{look.episode_return:,.1f}  ", "bold green")
    room = width - head.cell_len - tail.cell_len
    curve = Text(sparkline(look.returns, room, ascii_only=ascii_only), "green")
    return Text.assemble(head, curve, tail, no_wrap=True, overflow="crop")


def _shares(look: RunStatus, width: int, ascii_only: bool) -> list[RenderableType]:
    """Where the time of the learner and of the actors goes."""
    shares = {**look.shares, "between": max(0.0, 1 - look.shares["learning"] - look.shares["collecting"])}
    limit = _LIMITS.get(look.limited_by.part) if look.limited_by else None
    gap = 4
    room = (width - gap) // 2 if width >= WIDE else width
    learner = _bars("learner's time", _LEARNER_SHARES, shares, limit, room, ascii_only)
    who = "actors' time" if look.num_actors else "of its waiting"
    actors = _bars(who, _ACTOR_SHARES, shares, limit, room, ascii_only)
    if width < WIDE:
        return [*learner, *actors]
    empty = Text(" " * room)
    pairs = itertools.zip_longest(learner, actors, fillvalue=empty)
    return [Text.assemble(left, " " * gap, right) for left, right in pairs]


def _bars(
    title: str, names: Mapping[str, str], shares: Mapping[str, float], limit: str | None, width: int, ascii_only: bool
) -> list[Text]:
    """A heading, and a bar for each share, all of one width; the one that limits the run stands out."""
    room = width - 9 - 5
    lines = [Text(title.ljust(width), "dim")]
    for name, label in names.items():
        limits, share = name == limit, shares[name]
        bar = _stroke(share, room, ascii_only).ljust(room)
        percent = "" if math.isnan(share) else f"{min(share, 9.99):.0%}"
        style = "bold yellow" if limits else "blue"
        lines.append(Text.assemble((label.ljust(9), "bold" if limits else ""), (bar, style), percent.rjust(5)))
    return lines


def _stroke(share: float, width: int, ascii_only: bool) -> str:
    """As long as its share of the width, to half a column."""
    if math.isnan(share):
        return ""
    full, half = divmod(round(2 * width * max(0.0, min(share, 1.0))), 2)
    return "=" * full if ascii_only else "━" * full + "╸" * half


def _limit(look: RunStatus) -> Text | None:
    if look.limited_by is None:
        return None
    when = "over the whole run" if look.over else f"over the last {SMOOTHING_SECONDS:.0f} s"
    advice = "; " + look.limited_by.advice
    return Text.assemble(("limited by: " + look.limited_by.part, "bold yellow"), advice, (f" ({when})", "dim"))


def _processes(processes: Sequence[Process], width: int, ascii_only: bool) -> Text | None:
    """CPU (of one core) and memory."""
    if not processes:
        return None
    items = [_process(process) for process in processes]
    if len(items) > _MOST_PROCESSES:
        items = [items[0], _range(processes[1:])]
    items.append(Text("MB: shared pages in parts", "dim"))
    return _flow(items, width, " | " if ascii_only else " │ ")


def _process(process: Process) -> Text:
    cpu = "" if math.isnan(process.cpu) else f"{process.cpu:.0%} CPU "
    return Text(f"{process.name:<9}{cpu:>9}{process.megabytes:>6,.0f} MB")


def _range(actors: Sequence[Process]) -> Text:
    """Of many actors."""
    cpu = [actor.cpu for actor in actors if not math.isnan(actor.cpu)]
    sizes = [actor.megabytes for actor in actors]
    text = f"{len(actors)} actors  "
    if cpu:
        text += f"{min(cpu):.0%} to {max(cpu):.0%} CPU  "
    return Text(f"{text}{min(sizes):,.0f} to {max(sizes):,.0f} MB")


def _events(look: RunStatus) -> list[Text]:
    lag = f"policy lag {look.policy_lag:.1f}"
    if look.policy_lag_max > look.policy_lag:
        lag += f" (at most {look.policy_lag_max:.0f})"
    return [
        Text(lag),
        Text(_counted(look.restarts, "actor restart"), "yellow" if look.restarts else ""),
        Text(_counted(look.undone, "undone update"), "bold red" if look.undone else ""),
    ]


def _counted(number: int, name: str) -> str:
    return f"{number or 'no'} {name}{_plural(number)}"


def _plural(number: int) -> str:
    return "" if number == 1 else "s"


def _cut(text: Text, ascii_only: bool) -> Text:
    """One line of it."""
    if ascii_only:
        text.plain = text.plain.encode("ascii", "replace").decode()
    text.no_wrap, text.overflow = True, "crop" if ascii_only else "ellipsis"
    return text


def _flow(items: Iterable[Text], width: int, separator: str) -> Text:
    """Items side by side, in as many lines as they need; none is broken, if it fits at all."""
    text, used = Text(), 0
    for item in items:
        if used and used + len(separator) + item.cell_len > width:
            text.append("\n")
            used = 0
        if used:
            text.append(separator, "dim")
            used += len(separator)
        text.append_text(item)
        used += item.cell_len
    return text
