"""The root of the tree and its families: what a caller can do about an error, whichever room raises it."""

from __future__ import annotations

from enum import StrEnum


class AccessProblem(StrEnum):
    """Why a server or a database file cannot be used, if known: what to correct."""

    ADDRESS = "address"  # the DSN or URL cannot be parsed, or names something that cannot exist
    CREDENTIALS = "credentials"  # the user or the password is refused
    NO_DATABASE = "no database"  # the server has no database with that name
    FOREIGN_FILE = "foreign file"  # the file is not a SQLite database
    FILE_ACCESS = "file access"  # the file cannot be opened, created or written to
    LOCKED = "locked"  # another process holds the write lock


class ConquietError(Exception):
    """The root: `except ConquietError` catches everything that this package raises deliberately."""


class ConfigError(ConquietError):
    """A setting or an argument was refused before anything was done. Correct it.

    `problem` is set if the setting is a DSN or a URL.
    """

    def __init__(self, *args: object, problem: AccessProblem | None = None) -> None:
        super().__init__(*args)
        self.problem = problem


class UnavailableError(ConquietError):
    """A server, a file or a queue was not reached, or cannot accept anything now. Try again later.

    Nothing was changed, unless it is an `OutcomeUnknownError`. `problem` is the cause, if known.
    """

    def __init__(self, *args: object, problem: AccessProblem | None = None) -> None:
        super().__init__(*args)
        self.problem = problem


class OutcomeUnknownError(UnavailableError):
    """A change was sent and no answer came: it may have happened. Read to find out, or repeat it if that is safe."""


class RefusedError(ConquietError):
    """The current state does not allow it. Nothing was changed; the same call fails again until the state changes."""


class NotFoundError(ConquietError):
    """There is nothing with that id or name."""


class LostError(ConquietError):
    """Something that the caller relied on is gone or has another owner: a lease, a group, entries, staged rows."""
