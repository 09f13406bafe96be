"""Where a run's progress is shown: a terminal that can be drawn on, a notebook, or lines of text anywhere else."""

from __future__ import annotations

import io
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from actor_learner.reports.status import RunStatus, line

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

LINE_INTERVAL_SECONDS = 5.0
NOTEBOOK_INTERVAL_SECONDS = 1.0

_WIDTH = 90
_PRE = '<pre style="line-height: 1.25; white-space: pre; overflow-x: auto; font-family: monospace">{code}</pre>'


class Screen(Protocol):
    """Shows a run. What can't be written any more (to a closed terminal) is no error: it goes quiet.

    gone: whether it has.
    """

    gone: bool

    def draw(self, look: Callable[[], RunStatus], status: str = "") -> None:
        """Shows a run as it is now; asks for it only if it is time to."""

    def say(self, text: str) -> None:
        """Shows a line of text."""

    def close(self, look: RunStatus | None, status: str = "") -> None:
        """Shows the run as it was in the end, if that is known, and gives back what the screen was drawn on."""


class Silence:
    """Shows nothing."""

    gone = False

    def draw(self, look: Callable[[], RunStatus], status: str = "") -> None:
        """Does nothing."""

    def say(self, text: str) -> None:
        """Does nothing."""

    def close(self, look: RunStatus | None, status: str = "") -> None:
        """Does nothing."""


class Lines:
    """A line every few seconds, on the stream of the moment, so that notebooks and tests capture it.

    stream: name of the stream in `sys`. whole_at_end: ends with all that is known instead of a line.
    """

    def __init__(self, stream: str = "stderr", *, whole_at_end: bool = False) -> None:
        self._stream, self._whole_at_end = stream, whole_at_end
        self._due = 0.0
        self.gone = False

    def draw(self, look: Callable[[], RunStatus], status: str = "") -> None:
        """Writes a line, unless one was written just now or there is nothing to say yet."""
        now = time.monotonic()
        if now >= self._due and (seen := look()).env_steps:
            self._due = now + LINE_INTERVAL_SECONDS
            self.say(line(seen))

    def say(self, text: str) -> None:
        """Writes a line."""
        if self.gone:
            return
        try:
            print(text, file=getattr(sys, self._stream), flush=True)
        except (OSError, ValueError):
            self.gone = True

    def close(self, look: RunStatus | None, status: str = "") -> None:
        """Writes a line for the whole run, or all that is known of it."""
        if look is not None:
            self.say(_plain(look, status) if self._whole_at_end else line(look))


class Terminal:
    """A view that is drawn in place, below all else that Python writes to the same terminal.

    The cursor stays visible, so that a process that is killed leaves the terminal as it was. An unfinished line that
    is flushed is a prompt, such as a debugger's: then nothing is drawn until `resume`. stdout is redirected only if it
    is a terminal; what is written past Python isn't seen here.
    """

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        from actor_learner.reports.layout import fit

        self._fit, self._new_live = fit, Live  # imported here, because whoever draws is to take little time
        self._console = Console(file=stream, force_jupyter=False)
        self._live: Live | None = None
        self._lock = threading.RLock()
        self._prompted = self.gone = False
        self._stand_ins = {
            name: _Above(getattr(sys, name), self) for name in ("stdout", "stderr") if is_terminal(getattr(sys, name))
        }
        for name, stand_in in self._stand_ins.items():
            setattr(sys, name, stand_in)

    def draw(self, look: Callable[[], RunStatus], status: str = "") -> None:
        """Draws a run in place of what was drawn before."""
        with self._lock:
            if not (self._prompted or self.gone):
                self._write(lambda: self._show(self._fit(self._console, look(), status)))

    def _show(self, view: RenderableType) -> None:
        if self._live is None:
            self._live = self._begin()
        self._live.update(view, refresh=True)

    def _begin(self) -> Live:
        """Draws from where the cursor is."""
        live = self._new_live(
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
        )
        live.start()
        self._console.show_cursor(True)
        return live

    def say(self, text: str) -> None:
        """Writes whole lines above the view."""
        with self._lock:
            self._write(lambda: self._console.out(text, highlight=False))

    def prompt(self, text: str, stream: TextIO) -> None:
        """Removes the view, and writes text that ends within a line."""
        with self._lock:
            self._prompted = True
            self._write(self._remove)
            stream.write(text)
            stream.flush()

    def resume(self) -> None:
        """Whoever asked has got an answer: the program goes on."""
        self._prompted = False

    def close(self, look: RunStatus | None, status: str = "") -> None:
        """Leaves the whole of the last view, and gives the streams back."""
        with self._lock:
            for name, stand_in in self._stand_ins.items():
                if getattr(sys, name) is stand_in:
                    setattr(sys, name, stand_in.stream)
            self._write(self._remove)
            if look is not None:
                view = self._fit(self._console, look, status, whole=True)
                self._write(lambda: self._console.print(view))
            for stand_in in self._stand_ins.values():
                stand_in.finish()

    def _remove(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _write(self, write: Callable[[], object]) -> None:
        if self.gone:
            return
        try:
            write()
        except (OSError, ValueError):
            self.gone = True


class _Above:
    """Stands for `sys.stdout` or `sys.stderr` while a view is drawn: whole lines go above it."""

    def __init__(self, stream: TextIO, screen: Terminal) -> None:
        self.stream, self._screen = stream, screen
        self._unfinished = ""

    def write(self, text: str) -> int:
        """Of a line that was overwritten after a carriage return, only what is left of it is shown."""
        *lines, self._unfinished = (self._unfinished + text).split("\n")
        if lines:
            self._screen.say("\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines))
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        self.write("".join(lines))

    def flush(self) -> None:
        """A line that is yet to be overwritten waits until it is done; any other is a prompt."""
        if self._unfinished and not {"\r", "\b"} & set(self._unfinished):
            text, self._unfinished = self._unfinished, ""
            self._screen.prompt(text, self.stream)

    def finish(self) -> None:
        """Passes on what is left."""
        text, self._unfinished = self._unfinished, ""
        if text:
            self.stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class Notebook:
    """A view in a cell's output that is updated in place."""

    gone = False

    def __init__(self) -> None:
        self._due = 0.0
        self._shown: Any = None

    def draw(self, look: Callable[[], RunStatus], status: str = "") -> None:
        """Draws a run in place of what was drawn before, unless that was just now."""
        now = time.monotonic()
        if now >= self._due:
            self._due = now + NOTEBOOK_INTERVAL_SECONDS
            self._show(look(), status)

    def say(self, text: str) -> None:
        """Writes a line to the cell's stderr."""
        print(text, file=sys.stderr, flush=True)

    def close(self, look: RunStatus | None, status: str = "") -> None:
        """Draws a last time."""
        if look is not None:
            self._show(look, status)

    def _show(self, look: RunStatus, status: str) -> None:
        from IPython import display

        shown = _in_html(look, status)
        if self._shown is None:
            self._shown = display.display(shown, raw=True, display_id=True)
        else:
            self._shown.update(shown, raw=True)


def _in_html(look: RunStatus, status: str) -> dict[str, str]:
    """For browsers, and as plain text for what shows no HTML."""
    from rich.console import Console

    from actor_learner.reports.layout import fit

    console = Console(
        file=io.StringIO(), width=_WIDTH, force_terminal=True, force_jupyter=False, record=True, no_color=False
    )
    console.print(fit(console, look, status, whole=True))
    html = console.export_html(inline_styles=True, code_format=_PRE, clear=False)
    return {"text/html": html, "text/plain": console.export_text()}


def _plain(look: RunStatus, status: str) -> str:
    from rich.console import Console

    from actor_learner.reports.layout import fit

    console = Console(file=io.StringIO(), width=_WIDTH, force_jupyter=False, color_system=None)
    with console.capture() as captured:
        console.print(fit(console, look, status, whole=True))
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def choose_screen(
    stream: str = "stderr", *, quiet: bool = False, in_place: bool = True, whole_at_end: bool = False
) -> Screen:
    """The best that there is for the stream of this name in `sys`.

    in_place: False: one that only adds lines. whole_at_end: what only adds lines ends with all that is known.
    """
    if quiet:
        return Silence()
    if in_place and in_notebook():
        return Notebook()
    if in_place and is_terminal(getattr(sys, stream)):
        terminal = getattr(sys, stream)
        from rich.console import Console

        if not Console(file=terminal, force_jupyter=False).is_dumb_terminal:
            return Terminal(terminal)
    return Lines(stream, whole_at_end=whole_at_end)


def is_terminal(stream: TextIO | None) -> bool:
    """Whether somebody may look at what is written there."""
    return bool(getattr(stream, "isatty", lambda: False)())


def in_notebook() -> bool:
    """Whether this is an IPython kernel, whose output goes to a browser; IPython in a terminal is none."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")
