"""The SQLite store in memory, with the same statements on the same engine, for thousands of schedules.

Any statement may fail, as on a full or locked disk: each step must then be undone as a whole, and the error must be
the package's own.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

from conquiet.clock import Clock
from conquiet.flow import run
from conquiet.jobs.backends.sqlite import backend as sqlite
from conquiet.jobs.backends.sqlite.backend import SqliteBackend
from conquiet.jobs.backends.sqlite.handler import HandlerConnection, HandlerCursor


@contextmanager
def looking_seldom() -> Iterator[None]:
    """Poll for commits of other processes every second, not every 25 ms: there are none to be found."""
    usual = sqlite._LOOK_SECONDS
    sqlite._LOOK_SECONDS = 1.0
    try:
        yield
    finally:
        sqlite._LOOK_SECONDS = usual


def never() -> bool:
    return False


class SqliteInMemory(SqliteBackend):
    """The real back end refuses to run in memory because nothing would survive; here nothing has to."""

    def __init__(self, clock: Clock) -> None:
        super().__init__("simulated", clock, synchronous="OFF", awaits=False)
        self.statement_fails: Callable[[], bool] = never
        run(self.open("auto"))

    def _connected(self, *begin: str, **_: Any) -> sqlite3.Connection:
        connection = sqlite3.connect(
            ":memory:", isolation_level=None, check_same_thread=False, factory=_Connection
        )
        connection.fails = lambda: self.statement_fails()
        for statement in begin:
            connection.execute(statement)
        return connection


class SqliteOnDisk(SqliteInMemory):
    """A file and several connections: for handlers that write in the transaction of their ack.

    No connection waits for a lock, because on one thread nothing would release it: a locked database fails immediately
    with the error that a real one would give after ten seconds.
    """

    def __init__(self, path: str, clock: Clock) -> None:
        self.file = path
        self.found_locked = 0
        super().__init__(clock)
        self._open_connection().execute("CREATE TABLE effects (story TEXT, lease TEXT)")

    def _connected(self, *begin: str, factory: Any = None, **_: Any) -> sqlite3.Connection:
        kind = _HandlerConnection if factory is HandlerConnection else _Connection
        connection: Any = sqlite3.connect(
            self.file, timeout=0.0, isolation_level=None, check_same_thread=False, factory=kind
        )
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = OFF")
            connection.fails = lambda: self.statement_fails()
            connection.is_locked = self._is_locked
            for statement in begin:
                connection.execute(statement)
        except BaseException:
            connection.close()
            raise
        return connection

    def _is_locked(self) -> None:
        self.found_locked += 1

    def effects(self) -> list[tuple[str, str]]:
        return self._open_connection().execute("SELECT story, lease FROM effects").fetchall()


class _Connection(sqlite3.Connection):
    fails: Callable[[], bool] = staticmethod(never)
    is_locked: Callable[[], object] = staticmethod(never)

    def cursor(self, *_: Any) -> sqlite3.Cursor:  # type: ignore[override]  # the store asks for no other kind
        return super().cursor(_Cursor)

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        with _may_fail(self, sql):
            return super().execute(sql, *values)

    def executemany(self, sql: str, *values: Any) -> sqlite3.Cursor:
        with _may_fail(self, sql):
            return super().executemany(sql, *values)


class _Cursor(sqlite3.Cursor):
    def execute(self, sql: str, *values: Any) -> Self:
        with _may_fail(self.connection, sql):
            return super().execute(sql, *values)


class _HandlerConnection(HandlerConnection):
    fails: Callable[[], bool] = staticmethod(never)
    is_locked: Callable[[], object] = staticmethod(never)

    def cursor(self, *_: Any) -> Any:
        return super().cursor(_HandlerCursor)


class _HandlerCursor(HandlerCursor):
    def execute(self, sql: str, *values: Any) -> Self:
        with _may_fail(self.connection, sql):
            return super().execute(sql, *values)

    def executemany(self, sql: str, *values: Any) -> Self:
        with _may_fail(self.connection, sql):
            return super().executemany(sql, *values)


class _may_fail:  # used like a function; a class because it is called millions of times
    def __init__(self, connection: Any, sql: str) -> None:
        self._connection = connection
        # A rollback does not fail here: when SQLite cannot go on it has already rolled back by itself.
        if not sql.startswith("ROLLBACK") and connection.fails():
            raise sqlite3.OperationalError("disk I/O error")

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: object, __: object) -> None:
        if isinstance(error, sqlite3.OperationalError) and "locked" in str(error):
            self._connection.is_locked()
