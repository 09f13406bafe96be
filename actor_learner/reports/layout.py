"""The view of a run: a `RunStatus` laid out for the size of the terminal."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console, Group, RenderableType
from rich.constrain import Constrain
from rich.segment import SegmentLines
from rich.text import Text

from actor_learner.reports.status import SMOOTHING_SECONDS, Host, Process, RunStatus, times
from actor_learner.runs.metrics import ACTOR_TIME, LEARNER_TIME

WIDE = 72  # the least columns for the learner's and the actors' shares of time side by side
WIDEST = 100
_MAX_PROCESSES = 12  # more processes are summed up as ranges
_SPARKS = {False: "▁▂▃▄▅▆▇█", True: "_.-=+*%#"}  # by whether the terminal takes ASCII only
_LABEL_WIDTH = max(map(len, ACTOR_TIME.values())) + 1


def fit(console: Console, status: RunStatus, note: str = "", *, whole: bool = False) -> RenderableType:
    """Return the most detailed of three views that fits into the terminal; with `whole`, always the most detailed."""
    width = min(console.width - 1, WIDEST)  # a full line would wrap as soon as the terminal shrinks
    ascii_only = console.options.ascii_only
    for detail in (2, 1, 0):
        view = layout(status, width, note, detail=detail, ascii_only=ascii_only)
        lines = console.render_lines(view, pad=False)
        if whole or len(lines) < console.height:
            break
    return SegmentLines(lines, new_lines=True)


def layout(
    status: RunStatus, width: int, note: str = "", *, detail: int = 2, ascii_only: bool = False
) -> RenderableType:
    """Return the view of a run in at most `width` columns.

    detail: 2: everything; 1: without shares of time and processes; 0: progress only. note: a last sentence.
    """
    separator = " | " if ascii_only else " · "
    rest = "".join(separator + name for name in (status.algorithm, status.run_dir) if name)
    parts: list[RenderableType] = [
        _cut(Text.assemble((status.env, "bold"), (rest, "dim")), ascii_only),
        _bar(status, width, ascii_only),
        _flow(_steps(status), width, separator),
    ]
    if status.updates or status.undone:
        parts.append(_returns(status, width, ascii_only))
        if detail == 2:
            parts += ["", *_shares(status, width, ascii_only), ""]
        parts += filter(None, [_limit(status)])
        if detail == 2:
            parts += filter(None, [_processes(status.processes, width, ascii_only)])
            parts += filter(None, [_hosts(status.hosts, width, ascii_only)])
        parts.append(_flow(_events(status), width, separator))
        if status.cause and detail == 2:
            parts.append(_cut(Text(f"last restart: {status.cause}", "yellow"), ascii_only))
    if note:
        parts.append(Text(note, "bold"))
    return Constrain(Group(*parts), width)


def sparkline(values: Sequence[float], width: int, *, ascii_only: bool = False) -> str:
    """Return a curve of the values, from their lowest to their highest, in at most `width` characters."""
    if not values or width < 1:
        return ""
    count = min(width, len(values))
    edges = [index * len(values) // count for index in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    low, high = min(means), max(means)
    sparks = _SPARKS[ascii_only]
    scale = (len(sparks) - 1) / (high - low) if high > low else 0.0
    return "".join(sparks[round((mean - low) * scale)] for mean in means)


def _bar(status: RunStatus, width: int, ascii_only: bool) -> Text:
    done, rest = "=-" if ascii_only else "━─"
    room = width - 5
    full = round(status.part_done * room)
    style = "green" if status.part_done == 1 else "cyan"
    return Text.assemble((done * full, style), (rest * (room - full), "dim"), (f"{status.part_done:5.0%}", "bold"))


def _steps(status: RunStatus) -> list[Text]:
    items = [f"{status.steps:,} of {status.total_steps:,} steps"]
    if not math.isnan(status.speed):
        items.append(f"{status.speed:,.0f} steps/s")
    if status.updates:
        items.append(_counted(status.updates, "update"))
    return [Text(item) for item in [*items, *times(status)]]


def _returns(status: RunStatus, width: int, ascii_only: bool) -> RenderableType:
    if math.isnan(status.episode_return):
        return Text("return   no episode has ended yet", "dim")
    low, high = (f"{value:,.1f}" for value in (min(status.returns), max(status.returns)))
    head, tail = Text("return   "), Text(f"  {low} to {high}", "dim")
    head.append(f"{status.episode_return:,.1f}  ", "bold green")
    room = width - head.cell_len - tail.cell_len
    curve = Text(sparkline(status.returns, room, ascii_only=ascii_only), "green")
    return Text.assemble(head, curve, tail, no_wrap=True, overflow="crop")


def _shares(status: RunStatus, width: int, ascii_only: bool) -> list[RenderableType]:
    learner_time = {label: status.shares[name] for name, label in LEARNER_TIME.items()}
    learner_time["other"] = max(0.0, 1 - sum(learner_time.values()))
    actor_time = {label: status.shares[name] for name, label in ACTOR_TIME.items()}
    limit = status.limited_by.part if status.limited_by else None
    gap = 4
    room = (width - gap) // 2 if width >= WIDE else width
    learner = _bars("learner's time", learner_time, limit, room, ascii_only)
    actors = _bars("actors' time" if status.num_actors else "of its waiting", actor_time, limit, room, ascii_only)
    if width < WIDE:
        return [*learner, *actors]
    empty = Text(" " * room)
    pairs = itertools.zip_longest(learner, actors, fillvalue=empty)
    return [Text.assemble(left, " " * gap, right) for left, right in pairs]


def _bars(title: str, shares: Mapping[str, float], limit: str | None, width: int, ascii_only: bool) -> list[Text]:
    """Return a heading, and a bar for each share, all of one width; the share that limits the run is highlighted."""
    room = width - _LABEL_WIDTH - 5
    lines = [Text(title.ljust(width), "dim")]
    for label, share in shares.items():
        style, of_label = ("bold yellow", "bold") if label == limit else ("blue", "")
        percent = "" if math.isnan(share) else f"{min(share, 9.99):.0%}"
        full, half = divmod(round(2 * room * max(0.0, min(share, 1.0))) if percent else 0, 2)
        bar = "=" * full if ascii_only else "━" * full + "╸" * half
        lines.append(Text.assemble((label.ljust(_LABEL_WIDTH), of_label), (bar.ljust(room), style), percent.rjust(5)))
    return lines


def _limit(status: RunStatus) -> Text | None:
    if status.limited_by is None:
        return None
    part, advice = status.limited_by
    when = "over the whole run" if status.over else f"over the last {SMOOTHING_SECONDS:.0f} s"
    return Text.assemble((f"limited by: {part}", "bold yellow"), f"; {advice}", (f" ({when})", "dim"))


def _processes(processes: Sequence[Process], width: int, ascii_only: bool) -> Text | None:
    """Return the CPU time (in parts of one core) and the memory of each process."""
    if not processes:
        return None
    items = list(map(_process, processes))
    if len(items) > _MAX_PROCESSES:
        items = [items[0], _range(processes[1:])]
    return _flow([*items, Text("MB: shared pages in parts", "dim")], width, " | " if ascii_only else " │ ")


def _hosts(hosts: Sequence[Host], width: int, ascii_only: bool) -> Text | None:
    """Return what each machine of a cluster contributes."""
    if not hosts:
        return None
    if len(hosts) > _MAX_PROCESSES:
        speed, received = (sum(values) for values in zip(*((host[1], host[3]) for host in hosts), strict=True))
        return Text(f"{len(hosts)} hosts  {speed:,.0f} steps/s  {received:,.1f} MB/s")
    return _flow(map(_host, hosts), width, " | " if ascii_only else " │ ")


def _host(host: Host) -> Text:
    received = f", {host.megabytes_per_second:,.1f} MB/s" if host.megabytes_per_second else ""
    return Text(f"{host.name}  {host.steps_per_second:,.0f} steps/s{received}, waiting {host.waiting:.0%}")


def _process(process: Process) -> Text:
    cpu = "" if math.isnan(process.cpu) else f"{process.cpu:.0%} CPU "
    return Text(f"{process.name:<9}{cpu:>9}{process.megabytes:>6,.0f} MB")


def _range(actors: Sequence[Process]) -> Text:
    shares = [actor.cpu for actor in actors if not math.isnan(actor.cpu)]
    sizes = [actor.megabytes for actor in actors]
    cpu = f"{min(shares):.0%} to {max(shares):.0%} CPU  " if shares else ""
    return Text(f"{len(actors)} actors  {cpu}{min(sizes):,.0f} to {max(sizes):,.0f} MB")


def _events(status: RunStatus) -> list[Text]:
    lag = "" if math.isnan(status.policy_lag) else f"policy lag {status.policy_lag:.1f}"
    if status.policy_lag_max > status.policy_lag:
        lag += f" (at most {status.policy_lag_max:.0f})"
    return [
        Text(lag),
        *_replay(status),
        Text(_counted(status.restarts, "actor restart"), "yellow" if status.restarts else ""),
        Text(_counted(status.undone, "undone update"), "bold red" if status.undone else ""),
    ]


def _replay(status: RunStatus) -> list[Text]:
    if status.buffer_rows is None:
        return []
    owed = f" ({status.gradient_steps_owed:,} owed)" if status.gradient_steps_owed else ""
    return [Text(f"buffer {status.buffer_rows:,} rows"), Text(_counted(status.gradient_steps, "gradient step") + owed)]


def _counted(number: int, name: str) -> str:
    return f"{number:,} {name}{'' if number == 1 else 's'}" if number else f"no {name}s"


def _cut(text: Text, ascii_only: bool) -> Text:
    """Return the text as one line that is cut at the terminal's width."""
    if ascii_only:
        text.plain = text.plain.encode("ascii", "replace").decode()
    text.no_wrap, text.overflow = True, "crop" if ascii_only else "ellipsis"
    return text


def _flow(items: Iterable[Text], width: int, separator: str) -> Text:
    """Return the items side by side, in as many lines as they need; lines break between items."""
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
