"""The program: `actor-learner`, or `python -m actor_learner`. Ctrl-C shows no traceback, from the first line on."""

from __future__ import annotations

import sys


def run() -> None:
    """Run the command that this process was started for, and end the process."""
    try:
        from actor_learner import cli
    except KeyboardInterrupt:
        sys.exit(130)
    cli.run()


if __name__ == "__main__":
    run()
