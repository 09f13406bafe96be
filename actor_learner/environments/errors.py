"""Errors of environments, described in one line, and calls of environments' own code, which raise them."""

from __future__ import annotations

import contextlib
import logging
import os
import traceback
from collections.abc import Iterator
from typing import Any

_logger = logging.getLogger(__name__)


class EnvError(ValueError):
    """An environment can't be built or breaks its contract; the one-line message names problem and place."""


class ApiError(EnvError):
    """The first result of an environment breaks a rule of Gymnasium's API: in every process it would do so."""


_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_LIBRARY_PATHS = ("site-packages", "dist-packages", os.path.dirname(os.__file__), _PACKAGE, "<frozen")


def _last_frame(error: BaseException) -> str:
    """Return the innermost frame of a traceback in the user's own files, as `file, line n, in function`."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return "no traceback"
    own = [frame for frame in frames if not any(part in frame.filename for part in _LIBRARY_PATHS)]
    frame = (own or frames)[-1]
    return f"{frame.filename}, line {frame.lineno}, in {frame.name}"


def text_of(error: BaseException) -> str:
    """Return an exception's text, also where its own `__str__` raises."""
    try:
        return str(error)
    except Exception as failure:
        return f"(its text can't be read: {type(failure).__name__})"


def describe_error(error: BaseException, *, with_place: bool = True) -> str:
    """Return an exception as `Type: message (file, line n, in function)`, on one line."""
    message = error.msg if with_place and isinstance(error, SyntaxError) else text_of(error)  # its text has its place
    text = " ".join(f"{type(error).__name__}: {message}".split()).removesuffix(":")
    return f"{text} ({_last_frame(error)})" if with_place else text


@contextlib.contextmanager
def calling(what: str, raised: str = "raised", where: str = "") -> Iterator[None]:
    """Raise EnvError for an exception of an environment's code, SystemExit too.

    what, raised: the beginning of the message, `{what} {raised} ZeroDivisionError: ...`. where: added to an EnvError.
    """
    try:
        yield
    except EnvError as error:
        if not where:
            raise
        raise type(error)(f"{error} ({where})") from error
    except (Exception, SystemExit) as error:
        raise EnvError(f"{what} {raised} {describe_error(error)}") from error


@contextlib.contextmanager
def closing(env: Any, where: str) -> Iterator[Any]:
    """Close an environment when the `with` block ends. An exception of its `close` is only logged."""
    try:
        yield env
    finally:
        try:
            with calling(f"`close` of {where}"):
                env.close()
        except EnvError as error:
            _logger.warning("%s: what it writes when it closes may be lost", error)


def short(value: Any) -> str:
    """Return a value as one line of at most 80 characters."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."
