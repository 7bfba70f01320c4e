"""The PostgreSQL store's connections: taken for a statement each, checked before use, told apart after a fork."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg.conninfo import conninfo_to_dict

from conquiet.errors import JobError, OutcomeUnknownError, StoreUnavailableError, redact
from conquiet.flow import Call, Flow
from conquiet.jobs.listener import AsyncListener, Listener, is_quiet
from conquiet.redaction import redact_dsn

__all__ = ["PostgresConnections", "without_password"]

_CHANNEL = "conquiet_jobs"
_NAMES_AN_OPTION = ("invalid URI query parameter:", "invalid connection option")
# A server that went away without a word must not hold a worker for as long as TCP would; the DSN may say otherwise.
_CONNECTION = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
# UTC for the datetimes that we read. One plan for all: planning the claim takes as long as running it, and PostgreSQL,
# left alone, plans it anew each time. And the server shall notice a worker whose machine is gone: until then the rows of
# its transaction are locked, and nobody else can claim them. (Over a Unix socket these have no effect.)
_SETS = (
    "SET timezone TO 'UTC'; SET plan_cache_mode TO force_generic_plan; "
    "SET tcp_keepalives_idle TO 10; SET tcp_keepalives_interval TO 5; SET tcp_keepalives_count TO 3"
)
_INHERITED: list[Any] = []  # a parent's connections, kept alive untouched in its fork


def without_password(error: psycopg.Error) -> psycopg.Error:
    """`error`, or one in its place: of a DSN that it cannot read, libpq quotes the piece that it stumbled over."""
    text = str(error).strip()
    if not isinstance(error, psycopg.ProgrammingError) or error.sqlstate is not None:
        return error
    if not text.startswith(_NAMES_AN_OPTION):
        start, quote, _ = text.partition('"')
        text = start + ("(not shown: it may be a part of the password)" if quote else "")
    return psycopg.ProgrammingError(redact(text))


class PostgresConnections:
    def __init__(self, dsn: str, *, awaits: bool) -> None:
        self.dsn = dsn
        self._awaits = awaits
        self._where = redact_dsn(dsn)
        self._idle: list[Any] = []
        self._listeners: list[Listener] = []  # one for each who waits at a time, listening also in between
        self._closed = False
        self._pid = os.getpid()

    def close(self) -> Flow[None]:
        self._closed = True
        yield from self._drop_connections()

    def _listen(self) -> Flow[Listener]:
        connection = yield from self._connect()
        with self._translated("listen", connection):
            yield from self._first_step(connection, Call(connection.execute, f"LISTEN {_CHANNEL}"))
        return AsyncListener(connection) if self._awaits else Listener(connection)

    def _drop_connections(self) -> Flow[None]:
        closing = [*(idle.close for idle in self._idle), *(listener.close for listener in self._listeners)]
        self._idle, self._listeners = [], []
        for close in closing:
            yield Call(close, shield=True)

    def _forget_parents_connections(self) -> None:
        """After a fork they are the parent's: using them, or closing them properly, would disturb it."""
        if os.getpid() != self._pid:
            _INHERITED.extend([*self._idle, *self._listeners])
            self._idle, self._listeners, self._pid = [], [], os.getpid()

    def _connect(self) -> Flow[Any]:
        if self._closed:
            raise JobError(f"the store on {self._where} is closed")
        connect = psycopg.AsyncConnection.connect if self._awaits else psycopg.Connection.connect
        try:
            settings: dict[str, Any] = {**_CONNECTION, **conninfo_to_dict(self.dsn), "autocommit": True}
            connection = yield Call(lambda: connect(**settings))
            yield from self._first_step(connection, Call(connection.execute, _SETS))
            return connection
        except psycopg.Error as error:
            unreachable = without_password(error)
        raise StoreUnavailableError(
            f"{self._where} cannot be reached: {redact(str(unreachable)).strip()}"
        ) from unreachable

    def _first_step(self, connection: Any, step: Call) -> Flow[None]:
        """On a connection that nobody else knows of yet: if it fails, or is cancelled, nobody else would close it."""
        try:
            yield step
        except BaseException:
            yield Call(connection.close, shield=True)
            raise

    def _take(self) -> Flow[Any]:
        self._forget_parents_connections()
        while True:
            try:
                connection = self._idle.pop()  # looking first would leave room for another thread's pop
            except IndexError:
                return (yield from self._connect())
            if not connection.closed and is_quiet(connection):
                return connection
            yield Call(connection.close, shield=True)  # the server closed it meanwhile

    def _give_back(self, connection: Any) -> Flow[None]:
        if self._closed:
            yield Call(connection.close, shield=True)
        elif not connection.closed:
            self._idle.append(connection)

    @contextmanager
    def _translated(self, what: str, connection: Any, unknown: bool = False):  # type: ignore[no-untyped-def]
        try:
            yield
        except pg.UniqueViolation:
            raise
        except psycopg.Error as error:
            reason = redact(str(error)).strip()
            if connection.closed and unknown:
                raise OutcomeUnknownError(
                    f"{what} on {self._where}: the connection broke before the answer came ({reason}). It may have "
                    "happened: read the job to find out"
                ) from error
            raise StoreUnavailableError(f"{what} on {self._where}: {reason}. Nothing was changed") from error
