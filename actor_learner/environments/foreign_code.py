"""Calls of environments' own code: what it raises becomes an EnvError, and a forked child that returns from it ends."""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
from collections.abc import Iterator
from typing import NoReturn

from actor_learner.environments.errors import EnvError, describe_error

forks = 0
"""The forks between the program's first process and this one. Where a call changes it, the call returned in a child."""

_reported = mmap.mmap(-1, 1)  # shared with all children, so that only the first one is named


def _count_fork() -> None:
    global forks
    forks += 1


os.register_at_fork(after_in_child=_count_fork)


@contextlib.contextmanager
def calling(what: str, raised: str = "raised", where: str = "") -> Iterator[None]:
    """Raise EnvError for an exception of an environment's code, SystemExit too, and end a child that it forked.

    what, raised: the beginning of the message, `{what} {raised} ZeroDivisionError: ...`. where: added to an EnvError.
    """
    before = forks
    try:
        yield
    except EnvError as error:
        if not where:
            raise
        raise to_env_error(error, what, where=where) from error
    except (Exception, SystemExit) as error:
        raise to_env_error(error, what, raised) from error
    finally:
        if forks != before:
            end_child(what)


def to_env_error(error: BaseException, what: str, raised: str = "raised", where: str = "") -> EnvError:
    """Return an exception of an environment's code as the EnvError that `calling` raises."""
    if isinstance(error, EnvError):
        return type(error)(f"{error} ({where})")
    return EnvError(f"{what} {raised} {describe_error(error)}")


def end_child(what: str) -> NoReturn:
    """End this process, a child that environments forked and that would go on as a second actor, in the same memory.

    what: the call that forked it. A child that called `sys.exit` gets its exit code, another one is named on stderr.
    """
    error = sys.exception()
    raised = error.__cause__ or error if isinstance(error, EnvError) else error
    if isinstance(raised, SystemExit):
        os._exit(raised.code if isinstance(raised.code, int) else bool(raised.code))
    if not _reported[0]:
        _reported[0] = 1
        end = "returned from it" if raised is None else f"raised {describe_error(raised)}"
        text = f"{what} forked a process that {end} and would have gone on as a second actor, so it was ended: let it "
        text += f"call `os._exit`, or start it with subprocess or multiprocessing. Received: process {os.getpid()}\n"
        os.write(2, text.encode(errors="replace"))
    os._exit(1)
