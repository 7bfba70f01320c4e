"""`shell`: the command line in an empty folder."""

from tests.acceptance.cli.command import shell

__all__ = ["shell"]
