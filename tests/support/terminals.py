"""A terminal of which a test sees what a person would: a pseudo-terminal, and the few orders that a view gives it."""

from __future__ import annotations

import contextlib
import os
import re
import select

_ORDER = re.compile(r"\x1b\[(\??[0-9;]*)([A-Za-z])|(\r\n|\r|\n)|([^\x1b\r\n]+)")


class PseudoTerminal:
    """Has `stream`, to write to, and `lines()`, what is to be seen."""

    def __init__(self) -> None:
        self._master, slave = os.openpty()
        self.stream = os.fdopen(slave, "w", encoding="utf-8", buffering=1)
        self.written = ""
        self.orders: list[str] = []
        self._lines = [""]
        self._row = self._column = 0

    def lines(self) -> list[str]:
        """All lines from the first, without the empty ones at the end."""
        self.stream.flush()
        raw = b""
        with contextlib.suppress(OSError):
            while select.select([self._master], [], [], 0.1)[0]:
                raw += os.read(self._master, 65536)
        text = raw.decode()
        self.written += text
        for number, order, line, printed in _ORDER.findall(text):
            self._take(number, order, line, printed)
        return "\n".join(line.rstrip() for line in self._lines).rstrip().split("\n")

    def _take(self, number: str, order: str, line: str, printed: str) -> None:
        if order:
            self.orders.append(number + order)
        if order == "A":
            self._row = max(0, self._row - int(number or 1))
        elif order == "K":
            self._lines[self._row] = ""
        elif line:
            self._column = 0
            self._row += "\n" in line
            self._lines += [""] * (self._row + 1 - len(self._lines))
        elif printed:
            before = self._lines[self._row].ljust(self._column)
            self._lines[self._row] = before[: self._column] + printed + before[self._column + len(printed) :]
            self._column += len(printed)

    def hang_up(self) -> None:
        """The window is closed: from now on writing fails."""
        os.close(self._master)
        self._master = -1

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.stream.close()
        if self._master >= 0:
            os.close(self._master)
