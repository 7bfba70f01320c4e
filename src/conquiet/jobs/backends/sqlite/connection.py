"""The single connection of the SQLite store: serializes calls, translates errors and rolls back failed transactions."""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from contextlib import contextmanager
from typing import Any

from conquiet.access import access_problem
from conquiet.errors import DamagedRowError, JobConfigError, StoreClosedError, StoreUnavailableError
from conquiet.jobs.backends.sqlite.forks import close_before_forks
from conquiet.jobs.backends.sqlite.handler import HandlerConnection
from conquiet.sqlite_files import BUSY_SECONDS, commits_by_itself, connected, rolled_back, unusable_path

__all__ = ["SqliteConnection"]

_FORK_SECONDS = 1.0  # how long a fork waits for a statement that runs in another thread


class SqliteConnection:
    def __init__(self, path: str, synchronous: str) -> None:
        if path in ("", ":memory:"):  # SQLite would create a temporary database for both
            raise JobConfigError(
                "a SQLite store needs a file: sqlite:///jobs.db, or sqlite:////absolute/path.db"
            )
        if unusable := unusable_path(path):
            raise JobConfigError(f"{path!a} cannot be the file of a SQLite store: {unusable}")
        self.path = os.path.abspath(path)  # the same file after a change of the working directory
        self._synchronous = synchronous
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._opened = 0  # how many times; a new connection counts the changes of others anew
        self._lost = False  # the connection is broken or was closed; a new one is opened when it is needed
        self._closed = False
        self._unchecked: str | None = None  # `migrate` of a store whose file was locked when it was opened
        self._handlers: weakref.WeakSet[HandlerConnection] = weakref.WeakSet()
        self._inherited = ""  # why a forked process must not use the file
        self._fork_waits = False

    def _connected(
        self, *begin: str, wait: float = BUSY_SECONDS, factory: type[sqlite3.Connection] = sqlite3.Connection
    ) -> sqlite3.Connection:
        return connected(self.path, self._synchronous, *begin, wait=wait, factory=factory)

    def _connect(self, wait: float = BUSY_SECONDS) -> None:
        with self._translated("open"):
            self._connection = self._connected(wait=wait)
        self._opened += 1
        self._lost = False
        close_before_forks(self)

    def _close(self) -> None:
        with self._lock:
            self._lost = False
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _open_connection(self) -> sqlite3.Connection:
        if self._inherited:
            raise StoreClosedError(self._inherited)
        if self._lost:
            self._connect()
        if self._connection is None:
            raise self._is_closed()
        if self._unchecked is not None:
            migrate, self._unchecked = self._unchecked, None
            try:
                self._check_schema(migrate)
            except BaseException:  # whatever interrupts the check, the next call must make it
                self._unchecked = migrate
                raise
        return self._connection

    def _check_schema(self, migrate: str, theirs: Any = None) -> None:
        raise NotImplementedError

    def before_fork(self) -> None:
        """Close the connection; it is opened again by whoever needs it first."""
        parent = f"the store on {self.path} was opened in process {os.getpid()} and inherited by its fork"
        self._fork_waits = self._lock.acquire(timeout=_FORK_SECONDS)
        if not self._fork_waits:
            self._inherited = f"{parent}, while a statement was running: fork before, or between statements"
        elif any(not handler.closed for handler in self._handlers):
            self._inherited = f"{parent}, while a handler had a transaction: fork before the worker starts"
        elif self._connection is not None:
            self._connection.close()
            self._connection, self._lost = None, True

    def after_fork(self, child: bool) -> None:
        if not child:
            self._inherited = ""
        elif self._inherited:
            self._inherited += ". SQLite must not use it here"
            self._lock = threading.Lock()
            return
        if self._fork_waits:
            self._lock.release()

    def _is_closed(self) -> StoreClosedError:
        return StoreClosedError(f"the store on {self.path} is closed")

    def _execute(self, sql: str, connection: Any = None, **values: Any) -> sqlite3.Cursor:
        with self._translated("execute"):
            cursor: sqlite3.Cursor = (connection or self._open_connection()).cursor()
            cursor.row_factory = None  # the caller's connection may have another row factory
            return cursor.execute(sql, values)

    @contextmanager
    def _transaction(self, what: str, connection: Any = None):  # type: ignore[no-untyped-def]
        """Run the block in a transaction of its own, or in the caller's transaction, which the caller commits."""
        if connection is not None:
            theirs = _theirs(connection)
            if self._unchecked is not None:
                # Our own connection would wait for the lock that the caller holds.
                if not theirs.in_transaction:
                    self._execute("BEGIN IMMEDIATE", theirs)
                self._check_schema(self._unchecked, theirs)
            yield theirs
            return
        with self._lock, self._own_transaction(what):
            yield None

    @contextmanager
    def _own_transaction(self, what: str):  # type: ignore[no-untyped-def]
        self._execute("BEGIN IMMEDIATE")
        try:
            with self._translated(what):
                yield
            self._execute("COMMIT")
        except BaseException:  # whatever interrupts the step, all of it is rolled back
            self._roll_back()
            raise

    def _roll_back(self) -> None:
        """Roll back. If that fails, the caller still gets the original error."""
        connection = self._connection
        if connection is not None and not rolled_back(connection):
            self._connection, self._lost = None, True

    @contextmanager
    def _translated(self, what: str):  # type: ignore[no-untyped-def]
        try:
            yield
        except sqlite3.IntegrityError as error:
            if what == "enqueue" and _is_duplicate(error):
                raise
            raise StoreUnavailableError(f"{what} on {self.path}: {error}. Nothing was changed") from error
        except sqlite3.OperationalError as error:
            kind = DamagedRowError if _is_about_values(error) else StoreUnavailableError
            raise kind(
                f"{what} on {self.path}: {error}. Nothing was changed", problem=access_problem(error)
            ) from error
        except sqlite3.Error as error:
            raise StoreUnavailableError(
                f"{what} on {self.path}: {error}", problem=access_problem(error)
            ) from error


def _is_duplicate(error: sqlite3.IntegrityError) -> bool:
    return error.sqlite_errorcode in (sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY)


def _is_about_values(error: sqlite3.OperationalError) -> bool:
    """Return whether the error is about a value, such as a text that is not UTF-8 or not JSON.

    Errors about the file, a lock or the disk have codes of their own. Where Python itself cannot decode a text, its error
    has none, and only its message tells.
    """
    code = getattr(error, "sqlite_errorcode", None)
    return "UTF-8" in str(error) if code is None else code == sqlite3.SQLITE_ERROR


def _theirs(theirs: Any) -> sqlite3.Connection:
    if isinstance(theirs, HandlerConnection):
        theirs.hold()
    if not isinstance(theirs, sqlite3.Connection):
        raise JobConfigError(
            f"connection= takes a sqlite3 or SQLAlchemy connection, not {type(theirs).__name__} of "
            f"{type(theirs).__module__}; coroutines take one of aiosqlite, too"
        )
    try:
        alone = commits_by_itself(theirs)
    except sqlite3.ProgrammingError as error:
        raise JobConfigError(f"connection= takes an open connection: {error}") from error
    if alone:
        raise JobConfigError(
            "connection= needs a transaction, but this sqlite3 connection commits every statement by "
            'itself: execute("BEGIN IMMEDIATE") first'
        )
    return theirs
