"""How a command ends: its exit code, and the one line that says what to do."""

from __future__ import annotations

from enum import IntEnum

from conquiet.cli.settings import Found
from conquiet.errors import (
    AccessProblem,
    ConfigError,
    ConquietError,
    FlowError,
    JobError,
    MissingDependencyError,
    QueueAccessError,
    QueueError,
    SchemaVersionError,
    UnavailableError,
)
from conquiet.redaction import redact

__all__ = ["MEANINGS", "Exit", "advice", "exit_of", "without_secrets"]


class Exit(IntEnum):
    DONE = 0
    REFUSED = 1
    USAGE = 2
    UNREACHABLE = 3
    MISSING = 4
    SCHEMA = 5
    BUG = 70
    INTERRUPTED = 130


MEANINGS = {
    Exit.DONE: "done",
    Exit.REFUSED: "refused, or a check failed: no such job or queue, or its state does not allow it",
    Exit.USAGE: "usage: a flag, a setting, a DSN or a payload is missing or invalid",
    Exit.UNREACHABLE: "a server or a database file cannot be reached, or refuses the password",
    Exit.MISSING: "a package or a program is not installed",
    Exit.SCHEMA: "the database has no job tables, or another schema version: conquiet migrate",
    Exit.BUG: "an unexpected error: run it again with --debug, and report it",
    Exit.INTERRUPTED: "interrupted by Ctrl-C",
}

_EXAMPLE = "user:password@"

# The first match counts: errors with an exit code of their own come before their family.
_EXITS: tuple[tuple[type[BaseException], Exit], ...] = (
    (SchemaVersionError, Exit.SCHEMA),
    (MissingDependencyError, Exit.MISSING),
    (FlowError, Exit.BUG),
    (QueueAccessError, Exit.UNREACHABLE),
    (ConfigError, Exit.USAGE),
    (UnavailableError, Exit.UNREACHABLE),
    (ConquietError, Exit.REFUSED),
    (KeyboardInterrupt, Exit.INTERRUPTED),
)

_CORRECTIONS = {
    AccessProblem.ADDRESS: "correct {origin}",
    AccessProblem.CREDENTIALS: "check the user and the password in {origin}",
    AccessProblem.PERMISSION: "let the user in {origin} do that, or name another one",
    AccessProblem.NO_DATABASE: "create that database, or correct {origin}",
    AccessProblem.FOREIGN_FILE: "{origin} names a file that is not a SQLite database",
    AccessProblem.FILE_ACCESS: "check that the folder exists and is writable, or correct {origin}",
    AccessProblem.LOCKED: "another process holds its write lock: try again",
    None: "check that the server is running, and {origin}",
}


def exit_of(error: BaseException) -> Exit:
    return next((code for kind, code in _EXITS if isinstance(error, kind)), Exit.BUG)


def advice(error: BaseException, used: dict[str, Found]) -> str:
    """What happened and what to do, in one line; `used` are the settings that this command used."""
    text = " ".join(str(error).split()) or type(error).__name__
    if exit_of(error) is Exit.BUG:
        return f"{type(error).__qualname__}: {text} (unexpected: run it again with --debug)"
    if isinstance(error, SchemaVersionError) and error.found:
        return f"{error.found}: {'stop the workers, then run' if error.in_use else 'run'}: conquiet migrate"
    if isinstance(error, UnavailableError | QueueAccessError) and (origin := _origin(error, used)):
        return f"{text} ({_CORRECTIONS[error.problem].format(origin=origin)})"
    if isinstance(error, ConfigError) and error.problem and (origin := _origin(error, used)):
        return f"{origin}: {text}"
    return text


def _origin(error: BaseException, used: dict[str, Found]) -> str | None:
    """Where the DSN or URL was set that `error` is about."""
    key = "redis_url" if isinstance(error, QueueError) else "dsn" if isinstance(error, JobError) else ""
    return used[key].origin if key in used else None


def without_secrets(text: str, used: dict[str, Found]) -> str:
    """`text` without passwords: those that look like one, and those in the settings of this command.

    A driver may quote parts of a DSN that it cannot parse, so each part of the password is hidden.
    """
    for found in used.values():
        before, at, _ = str(found.value).rpartition("@")
        secret = before.partition("://")[2].partition(":")[2]
        if at and secret:
            pieces = {
                secret,
                *(piece for piece in secret.split() if len(piece) > 3),
            }  # shorter parts may be ordinary words
            for piece in sorted(pieces, key=len, reverse=True):
                text = text.replace(piece, "***")
    # The password of an example is not a secret.
    return _EXAMPLE.join(redact(part) for part in text.split(_EXAMPLE))
