"""How a command ends: its exit code, and the one line that says what to do."""

from __future__ import annotations

from enum import IntEnum

from conquiet.cli.settings import Found
from conquiet.errors import (
    ConquietError,
    JobConfigError,
    MissingDependencyError,
    PayloadError,
    PolicyError,
    QueueConfigError,
    QueueConnectionError,
    ReconcileConfigError,
    SchemaVersionError,
    SettingsError,
    StoreUnavailableError,
    TaskConfigError,
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
    Exit.REFUSED: "not done, or found wrong: no such job or queue, a state that does not allow it, a failed check",
    Exit.USAGE: "the command itself: a flag, a setting, a DSN or a payload is missing or wrong",
    Exit.UNREACHABLE: "a server or a database file cannot be reached, or refuses the password",
    Exit.MISSING: "a package or a program is not installed",
    Exit.SCHEMA: "the database has no job tables, or those of another version: conquiet migrate",
    Exit.BUG: "an error nobody expected: run it again with --debug, and report it",
    Exit.INTERRUPTED: "interrupted by Ctrl-C",
}

_EXAMPLE = "user:password@"

_EXITS: tuple[tuple[type[BaseException] | tuple[type[BaseException], ...], Exit], ...] = (
    (SchemaVersionError, Exit.SCHEMA),
    ((StoreUnavailableError, QueueConnectionError), Exit.UNREACHABLE),
    (MissingDependencyError, Exit.MISSING),
    (
        (
            SettingsError,
            JobConfigError,
            QueueConfigError,
            ReconcileConfigError,
            PayloadError,
            PolicyError,
            TaskConfigError,
        ),
        Exit.USAGE,
    ),
    (ConquietError, Exit.REFUSED),
    (KeyboardInterrupt, Exit.INTERRUPTED),
)


def exit_of(error: BaseException) -> Exit:
    if isinstance(error, StoreUnavailableError) and _is_bad_dsn(error):
        return Exit.USAGE
    return next((code for kinds, code in _EXITS if isinstance(error, kinds)), Exit.BUG)


def advice(error: BaseException, used: dict[str, Found]) -> str:
    """What happened and what to do, in one line; `used` are the settings this command went by."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, SchemaVersionError) and "migrate(dsn)" in text:
        first = "stop the workers, then run" if "stop the workers" in text else "run"
        return f"{text.rpartition(': ')[0]}: {first}: conquiet migrate"
    if isinstance(error, StoreUnavailableError) and "dsn" in used:
        return f"{text} ({_store_advice(error, text, used['dsn'].origin)})"
    if isinstance(error, QueueConnectionError) and "redis_url" in used:
        return f"{text} ({_redis_advice(text, used['redis_url'].origin)})"
    if isinstance(error, JobConfigError) and _is_about_dsn(text) and "dsn" in used:
        return f"{used['dsn'].origin}: {text}"
    if isinstance(error, QueueConfigError) and "no usable Redis URL" in text and "redis_url" in used:
        return f"{used['redis_url'].origin}: {text}"
    if isinstance(error, ConquietError):
        return text
    return f"{type(error).__qualname__}: {text} (nobody expected this: run it again with --debug)"


def without_secrets(text: str, used: dict[str, Found]) -> str:
    """`text` without passwords: what looks like one, and what is one in the settings of this command.

    A DSN that cannot be parsed may be quoted in pieces, which look like nothing: so each piece of it is hidden.
    """
    for found in used.values():
        before, at, _ = str(found.value).rpartition("@")
        secret = before.partition("://")[2].partition(":")[2]
        if at and secret:
            pieces = {
                secret,
                *(piece for piece in secret.split() if len(piece) > 3),
            }  # shorter ones are words, too
            for piece in sorted(pieces, key=len, reverse=True):
                text = text.replace(piece, "***")
    # What stands in an example is not a secret.
    return _EXAMPLE.join(redact(part) for part in text.split(_EXAMPLE))


def _is_about_dsn(text: str) -> bool:
    return "names no job store" in text or "is no usable" in text


def _is_bad_dsn(error: BaseException) -> bool:
    """libpq could not even read it. Its own errors are known here by name only: psycopg may not be installed."""
    cause = error.__cause__
    return type(cause).__name__ == "ProgrammingError" and "cannot be reached" in str(error)


def _store_advice(error: BaseException, text: str, origin: str) -> str:
    if _is_bad_dsn(error):
        return f"correct {origin}: postgresql://user:password@host:5432/database, special characters as %40"
    if "password" in text or "role " in text:
        return f"check the user and the password in {origin}"
    if 'database "' in text and "does not exist" in text:
        return f"create that database, or correct {origin}"
    if "not a database" in text:
        return f"{origin} names a file that SQLite did not write"
    if "readonly" in text or "unable to open" in text:
        return f"check that the folder exists and may be written to, or correct {origin}"
    if "locked" in text:
        return "another process holds its write lock: try again"
    return f"check that the server runs, and {origin}"


def _redis_advice(text: str, origin: str) -> str:
    lowered = text.lower()
    if "password" in lowered or "authenticat" in lowered or "noauth" in lowered:
        return f"check the user and the password in {origin}"
    return f"check that the server runs, and {origin}"
