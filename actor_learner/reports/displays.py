"""Where the progress of a run is shown: in place on a terminal or in a notebook, or as lines of text elsewhere."""

from __future__ import annotations

import builtins
import io
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TextIO

from actor_learner.reports.status import RunStatus, line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

LINE_INTERVAL_SECONDS = 5.0
NOTEBOOK_INTERVAL_SECONDS = 1.0

_WIDTH = 90
_PRE = '<pre style="line-height: 1.25; white-space: pre; overflow-x: auto; font-family: monospace">{code}</pre>'


class Lines:
    """Prints a line every few seconds to the current `sys.<stream>`, so that notebooks and tests capture it.

    view_at_end: the whole view comes last, instead of a line. gone: nothing is printed; like a terminal, it goes quiet
    and sets this when its stream can't be written any more.
    """

    def __init__(self, stream: str = "stderr", *, view_at_end: bool = False, gone: bool = False) -> None:
        self._stream, self._view_at_end, self.gone = stream, view_at_end, gone
        self._due = 0.0

    def draw(self, status: Callable[[], RunStatus], note: str = "") -> None:
        """Show the run as it is now, with a sentence below. Calls `status` only when it is time to draw."""
        now = time.monotonic()
        if now >= self._due and not self.gone and (seen := status()).steps:
            self._due = now + LINE_INTERVAL_SECONDS
            self.say(line(seen))

    def say(self, text: str) -> None:
        if self.gone:
            return
        try:
            print(text, file=getattr(sys, self._stream), flush=True)
        except (OSError, ValueError):
            self.gone = True

    def close(self, status: RunStatus | None, note: str = "") -> None:
        """Show the final status, if there is one, and release the stream."""
        if status is not None:
            self.say(_plain(status, note) if self._view_at_end else line(status))


class Terminal:
    """Draws a view in place, below the lines that Python writes to the same terminal.

    rich's own redirection would end each unfinished line that is flushed: a progress bar would print a line a step,
    and the view would be drawn over a prompt. Here the view gives way to a prompt, of `input` too, until `resume`. The
    cursor stays visible, so a killed process leaves the terminal usable. Output that bypasses Python isn't noticed.
    """

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        from actor_learner.reports.layout import fit

        self._fit, self._new_live = fit, Live  # imported here, because drawing should take little time
        self._console = Console(file=stream, force_jupyter=False)
        self._live: Live | None = None
        self._lock = threading.RLock()
        self._prompted = self.gone = False
        terminals = [name for name in ("stdout", "stderr") if is_terminal(getattr(sys, name))]
        self._redirections = {name: _Redirection(getattr(sys, name), self) for name in terminals}
        for name, redirection in self._redirections.items():
            setattr(sys, name, redirection)
        self._input = builtins.input
        builtins.input = self._ask

    def draw(self, status: Callable[[], RunStatus], note: str = "") -> None:
        self._write(lambda: self._show(status, note))

    def say(self, text: str) -> None:
        self._write(lambda: self._console.out(text, highlight=False))

    def pause(self) -> None:
        """Remove the view for a prompt."""
        with self._lock:
            self._prompted = True
            self._write(self._remove)

    def resume(self) -> None:
        """Draws again after a prompt was answered."""
        self._prompted = False

    def close(self, status: RunStatus | None, note: str = "") -> None:
        if builtins.input == self._ask:
            builtins.input = self._input
        for name, redirection in self._redirections.items():
            if getattr(sys, name) is redirection:
                setattr(sys, name, redirection.stream)
        self._write(self._remove)
        if status is not None:
            self._write(lambda: self._console.print(self._fit(self._console, status, note, whole=True)))
        for redirection in self._redirections.values():
            redirection.finish()

    def _ask(self, prompt: object = "", /) -> str:
        """Replace `input`, which on a terminal writes its prompt past `sys.stdout`."""
        self.pause()
        return self._input(prompt)

    def _show(self, status: Callable[[], RunStatus], note: str) -> None:
        if self._prompted:
            return
        if self._live is None:
            self._live = self._new_live(
                console=self._console,
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
                vertical_overflow="crop",
            )
            self._live.start()
            self._console.show_cursor(True)
        self._live.update(self._fit(self._console, status(), note), refresh=True)

    def _remove(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _write(self, write: Callable[[], object]) -> None:
        with self._lock:
            try:
                if not self.gone:
                    write()
            except (OSError, ValueError):
                self.gone = True


class _Redirection:
    """Replaces `sys.stdout` or `sys.stderr` while a view is drawn: whole lines go above it."""

    def __init__(self, stream: TextIO, terminal: Terminal) -> None:
        self.stream, self._terminal = stream, terminal
        self._unfinished = ""

    def write(self, text: str) -> int:
        """Print whole lines; of a line that a carriage return overwrites, the last version."""
        *lines, self._unfinished = (self._unfinished + text).split("\n")
        if lines:
            self._terminal.say("\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines))
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        self.write("".join(lines))

    def flush(self) -> None:
        """Show an unfinished line as a prompt, unless it is a progress bar, which the next write overwrites."""
        if self._unfinished and not {"\r", "\b"} & set(self._unfinished):
            self._terminal.pause()
            self.finish()
            self.stream.flush()

    def finish(self) -> None:
        if self._unfinished:
            self.stream.write(self._unfinished)
            self._unfinished = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class Notebook:
    """Updates a view in the output of a notebook's cell."""

    gone = False

    def __init__(self) -> None:
        self._due = 0.0
        self._output: Any = None

    def draw(self, status: Callable[[], RunStatus], note: str = "") -> None:
        now = time.monotonic()
        if now >= self._due:
            self._due = now + NOTEBOOK_INTERVAL_SECONDS
            self._show(status(), note)

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def close(self, status: RunStatus | None, note: str = "") -> None:
        if status is not None:
            self._show(status, note)

    def _show(self, status: RunStatus, note: str) -> None:
        from IPython import display

        view = _html(status, note)
        if self._output is None:
            self._output = display.display(view, raw=True, display_id=True)
        else:
            self._output.update(view, raw=True)


Display = Lines | Terminal | Notebook


def _html(status: RunStatus, note: str) -> dict[str, str]:
    console = _print_view(status, note, force_terminal=True, record=True, no_color=False)
    html = console.export_html(inline_styles=True, code_format=_PRE, clear=False)
    return {"text/html": html, "text/plain": console.export_text()}


def _plain(status: RunStatus, note: str) -> str:
    console = _print_view(status, note, record=True, color_system=None)
    return "\n".join(line.rstrip() for line in console.export_text().splitlines())


def _print_view(status: RunStatus, note: str, **options: Any) -> Console:
    from rich.console import Console

    from actor_learner.reports.layout import fit

    console = Console(file=io.StringIO(), width=_WIDTH, force_jupyter=False, **options)
    console.print(fit(console, status, note, whole=True))
    return console


def choose_display(
    stream: str = "stderr", *, quiet: bool = False, in_place: bool = True, view_at_end: bool = False
) -> Display:
    """Chooses the best display for `sys.<stream>`.

    in_place: False: only lines are added. view_at_end: the whole view follows the last added line.
    """
    in_place = in_place and not quiet
    if in_place and in_notebook():
        return Notebook()
    if in_place and is_terminal(terminal := getattr(sys, stream)):
        from rich.console import Console

        if not Console(file=terminal, force_jupyter=False).is_dumb_terminal:
            return Terminal(terminal)
    return Lines(stream, view_at_end=view_at_end, gone=quiet)


def is_terminal(stream: TextIO | None) -> bool:
    return bool(getattr(stream, "isatty", lambda: False)())


def in_notebook() -> bool:
    """Return whether this is an IPython kernel, whose output goes to a browser. IPython in a terminal isn't one."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")
