"""The `conquiet` command."""

from __future__ import annotations

import os
import sys

__all__ = ["main"]


def main() -> None:
    """The command `conquiet`."""
    try:
        import typer  # noqa: F401 - imported here to report its absence in one line
    except ImportError:
        print('conquiet: the command line needs typer and rich: pip install "conquiet[cli]"', file=sys.stderr)
        sys.exit(4)
    from conquiet.cli.command import run

    try:
        code = run()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of the pipe, such as `head`, has exited
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    sys.exit(code)
