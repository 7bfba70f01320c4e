"""Opens SQLite files the same way for every room: WAL, the chosen durability, a wait for other processes' locks."""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from conquiet.access import access_problem
from conquiet.clock import SYSTEM_CLOCK, Parker
from conquiet.errors import AccessProblem, StoreUnavailableError

__all__ = [
    "BUSY_SECONDS",
    "commits_by_itself",
    "connected",
    "opened",
    "read_only",
    "rolled_back",
    "set_wal",
    "transaction",
    "unusable_path",
]

BUSY_SECONDS = 10.0  # how long to wait for another process's write lock
_log = logging.getLogger("conquiet.sqlite")


def unusable_path(path: str) -> str | None:
    """Why no file can have this path, and what to do; None if one may. SQLite's driver would raise a ValueError."""
    if "\0" in path:
        return "a path cannot contain NUL; use another path, without %00"
    try:
        os.fsencode(path)
        os.path.abspath(path)
    except UnicodeEncodeError:
        return "it contains a lone surrogate, which no file name can; use characters that UTF-8 can encode"
    except OSError as error:  # the path is relative and the current folder was removed
        return f"the current folder cannot be found ({error.strerror}); use an absolute path"
    return None


def connected(
    path: str,
    synchronous: str,
    *begin: str,
    wait: float = BUSY_SECONDS,
    factory: type[sqlite3.Connection] = sqlite3.Connection,
) -> sqlite3.Connection:
    """A connection, after the statements in `begin`. It waits for locks; with `wait` less long until it is returned."""
    connection = sqlite3.connect(
        path, isolation_level=None, check_same_thread=False, timeout=wait, factory=factory
    )
    try:
        set_wal(connection, wait)
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        for statement in begin:
            connection.execute(statement)
        if wait != BUSY_SECONDS:
            connection.execute(f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000:.0f}")
    except BaseException:
        connection.close()
        raise
    return connection


def read_only(path: str) -> sqlite3.Connection:
    """A read-only connection, for a file that may not be ours: not even its journal mode is changed."""
    return sqlite3.connect(f"{Path(path).as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS)


@contextmanager
def opened(path: str, synchronous: str = "FULL") -> Iterator[sqlite3.Connection]:
    """A connection for the block; `StoreUnavailableError` if the file cannot be opened."""
    try:
        connection = connected(path, synchronous)
    except sqlite3.Error as error:
        raise StoreUnavailableError(
            f"sqlite:///{path} cannot be opened: {error}", problem=access_problem(error)
        ) from error
    with closing(connection):
        yield connection


@contextmanager
def transaction(connection: sqlite3.Connection, what: str) -> Iterator[None]:
    """A transaction that takes the write lock when it begins; rolled back on any exception."""
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        raise StoreUnavailableError(
            f"{what}: SQLite: {error}. Nothing was changed", problem=access_problem(error)
        ) from error
    finally:
        rolled_back(connection)


def rolled_back(connection: sqlite3.Connection) -> bool:
    """Roll back. Never raises: an error is already on its way to the caller.

    False if SQLite refused: then the connection is closed, which has the same effect.
    """
    try:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    except sqlite3.Error as error:
        _log.warning(
            "ROLLBACK failed: %s. The connection is closed instead, which has the same effect", error
        )
        connection.close()
        return False
    return True


def set_wal(connection: sqlite3.Connection, wait: float = BUSY_SECONDS) -> None:
    """Switch to WAL, and retry while other processes open the same new file: SQLite's busy timeout does not apply here."""
    deadline = SYSTEM_CLOCK.monotonic() + wait
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if access_problem(error) is not AccessProblem.LOCKED or SYSTEM_CLOCK.monotonic() >= deadline:
                raise
            Parker().park(0.01)


def commits_by_itself(connection: sqlite3.Connection) -> bool:
    if connection.in_transaction:
        return False
    return connection.isolation_level is None or getattr(connection, "autocommit", None) is True
