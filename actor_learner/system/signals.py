"""Signals: after Ctrl-C, SIGTERM or a closed terminal, a run ends its update and saves before it stops."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any

from actor_learner.system.aborts import leave_closed_terminal

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """A context in which SIGINT, SIGTERM and SIGHUP set `requested` instead of ending the process.

    A second SIGINT raises KeyboardInterrupt at once, unless `saving` is set. Handlers are set in the main thread only,
    and restored at exit. Ignored signals stay ignored: under `nohup`, closing the terminal has no effect.

    Attributes:
        quiet: True to write no line on standard error after the first signal.
        doing: what that line says that the run does after it.
        received: the number of the first signal, or None.
        saving: True while the run is being saved, which a second SIGINT doesn't interrupt.
    """

    def __init__(self, *, quiet: bool = False, doing: str = "ending this update and saving") -> None:
        self.quiet, self.doing = quiet, doing
        self.received: int | None = None
        self.saving = False
        self._handlers = contextlib.ExitStack()

    @property
    def requested(self) -> bool:
        """True after the first signal."""
        return self.received is not None

    def __enter__(self) -> Interrupts:
        self._handlers.enter_context(_handling(_SIGNALS, self._receive))
        return self

    def __exit__(self, *_: object) -> None:
        self._handlers.close()

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            leave_closed_terminal()
        if self.received is None:
            self.received = number
            if not self.quiet:
                with contextlib.suppress(OSError):  # not `print`: the signal may have interrupted a write to its buffer
                    os.write(2, f"\n{self.doing} (Ctrl-C again ends at once)\n".encode())
        elif number == signal.SIGINT and not self.saving:
            raise KeyboardInterrupt("nothing more is saved: --resume (resume=True) goes on from the last checkpoint")

    def raise_received(self, message: str) -> None:
        """Raise KeyboardInterrupt(message) after SIGINT, and SystemExit(128 + number) after another signal."""
        if self.received == signal.SIGINT:
            raise KeyboardInterrupt(message)
        if self.received is not None:
            print(f"{signal.Signals(self.received).name}: {message}", file=sys.stderr)
            raise SystemExit(128 + self.received)


@contextlib.contextmanager
def exiting_on_signals() -> Iterator[None]:
    """Raise SystemExit(128 + number) on SIGTERM and SIGHUP, so that clean-up runs; ignored signals stay ignored."""

    def exit_with(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    with _handling((signal.SIGTERM, signal.SIGHUP), exit_with):
        yield


@contextlib.contextmanager
def _handling(numbers: Iterable[int], handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Set a handler for the signals that aren't ignored, and restore the former ones; in the main thread only."""
    previous: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        numbers = [number for number in numbers if signal.getsignal(number) not in (signal.SIG_IGN, None)]
        previous = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, former in previous.items():
            signal.signal(number, former)


def stop_requested() -> bool:
    """Return True if a signal has asked this process's run to stop, so that nothing should wait any longer."""
    owners = [getattr(signal.getsignal(number), "__self__", None) for number in _SIGNALS]
    return any(isinstance(owner, Interrupts) and owner.requested for owner in owners)
