"""What people run."""

from __future__ import annotations

import os
import sys

__all__ = ["main"]


def main() -> None:
    """The command `conquiet`."""
    try:
        import typer  # noqa: F401 - asked for here, so that its absence is told in one line
    except ImportError:
        print('conquiet: the command line needs typer and rich: pip install "conquiet[cli]"', file=sys.stderr)
        sys.exit(4)
    from conquiet.cli.command import run

    try:
        code = run()
        sys.stdout.flush()
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    sys.exit(code)
