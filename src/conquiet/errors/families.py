"""The root of the tree and its families: what a caller can do about an error, whichever room raises it."""

from __future__ import annotations

from enum import StrEnum
from typing import Any


class AccessProblem(StrEnum):
    """Why a server or a database file cannot be used, if known: what to correct."""

    ADDRESS = "address"  # the DSN or URL cannot be parsed, or names something that cannot exist
    CREDENTIALS = "credentials"  # the user or the password is refused
    PERMISSION = "permission"  # the user may not do this
    NO_DATABASE = "no database"  # the server has no database with that name
    FOREIGN_FILE = "foreign file"  # the file is not a SQLite database
    FILE_ACCESS = "file access"  # the file cannot be opened, created or written to
    LOCKED = "locked"  # another process holds the write lock


class ConquietError(Exception):
    """The root: `except ConquietError` catches everything that this package raises deliberately.

    Every error survives pickling and copying with its attributes, also one whose constructor takes other arguments
    than its message: in a process pool, an error that cannot be restored would leave its caller waiting.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self.args), self.__dict__ or None


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


_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: classes written in Python have it


def _restored(kind: type[ConquietError], args: tuple[Any, ...]) -> ConquietError:
    """Make an error again without its own constructor. Its attributes follow: pickle and copy set them."""
    error = kind.__new__(kind, *args)
    # The interpreter's own classes (ImportError, OSError) keep some values outside of `__dict__`.
    builtin = next(base for base in kind.__mro__ if not base.__flags__ & _HEAP_TYPE)
    builtin.__init__(error, *args)  # type: ignore[misc]
    return error
