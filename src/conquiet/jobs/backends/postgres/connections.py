"""The PostgreSQL store's connections: taken for a statement each, checked before use, told apart after a fork; and their
errors made ours.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg.conninfo import conninfo_to_dict

from conquiet.access import access_problem
from conquiet.errors import (
    AccessProblem,
    DamagedRowError,
    JobConfigError,
    PayloadError,
    StoreClosedError,
    StoreOutcomeUnknownError,
    StoreUnavailableError,
    redact,
)
from conquiet.flow import Call, Flow
from conquiet.jobs.backends.postgres.listener import AsyncListener, Listener, is_quiet
from conquiet.redaction import redact_dsn, without_password

__all__ = ["ENQUEUE", "PostgresConnections"]

ENQUEUE = "enqueue"  # the one step of which a taken id is the caller's own affair

_CHANNEL = "conquiet_jobs"
# A server that went away without a word must not hold a worker for as long as TCP would; the DSN may say otherwise.
_CONNECTION = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
# Whatever the database or the DSN say: in another encoding not every text could be sent, or read as a text.
_ENCODING = {"client_encoding": "UTF8"}
# UTC for the datetimes that a handler reads on a connection of ours. One plan for all values: planning the claim takes as
# long as running it, and PostgreSQL by itself plans it anew each time. Keepalives, so that the server notices a worker
# whose machine is gone: until then the rows of its transaction are locked, and nobody else can claim them. (They have no
# effect over a Unix socket.)
_SETS = (
    "SET timezone TO 'UTC'; SET plan_cache_mode TO force_generic_plan; "
    "SET tcp_keepalives_idle TO 10; SET tcp_keepalives_interval TO 5; SET tcp_keepalives_count TO 3"
)
_INHERITED: list[Any] = []  # a parent's connections, kept alive untouched in its fork


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
        try:
            return AsyncListener(connection) if self._awaits else Listener(connection)
        except OSError as error:  # no file descriptor left
            yield Call(connection.close, shield=True)
            raise StoreUnavailableError(f"listen on {self._where}: {error}") from error

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
            raise StoreClosedError(f"the store on {self._where} is closed")
        connect = psycopg.AsyncConnection.connect if self._awaits else psycopg.Connection.connect
        unreachable: Exception | None
        try:
            settings: dict[str, Any] = {**_CONNECTION, **conninfo_to_dict(self.dsn)}
            settings |= {**_ENCODING, "autocommit": True}
            connection = yield Call(lambda: connect(**settings))
            yield from self._first_step(connection, Call(connection.execute, _SETS))
            return connection
        except psycopg.Error as error:
            unreachable = without_password(error)
        except UnicodeError:  # its text is not shown: it may quote a password
            unreachable = None
        except OSError as error:  # of this machine: no file descriptor left, say
            unreachable = error
        if unreachable is None:
            raise JobConfigError(
                f"{self._where} names no host that can exist, or holds no proper text: the parts of a host's name between "
                "dots have 1 to 63 characters; write it as postgresql://user:password@host:5432/database",
                problem=AccessProblem.ADDRESS,
            )
        problem = access_problem(unreachable)
        if problem is AccessProblem.ADDRESS:
            raise JobConfigError(
                f"{self._where} cannot be read as a DSN: {redact(str(unreachable)).strip()}. Write it as "
                "postgresql://user:password@host:5432/database, special characters as %40",
                problem=problem,
            ) from unreachable
        raise StoreUnavailableError(
            f"{self._where} cannot be reached: {redact(str(unreachable)).strip()}", problem=problem
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
    def _translated(self, what: str, connection: Any, unknown: bool = False, theirs: bool = False):  # type: ignore[no-untyped-def]
        """`theirs`: it happens in a transaction that the caller gave us."""
        place = f"{what} {'in the transaction given as connection=' if theirs else f'on {self._where}'}"
        try:
            yield
        except pg.UniqueViolation as error:
            if what == ENQUEUE:
                raise
            raise _unavailable(place, error) from error
        except (pg.UntranslatableCharacter, UnicodeEncodeError) as error:
            raise _untranslatable(place, what) from error
        except psycopg.DataError as error:  # our own values are checked: this one stood in a row
            raise DamagedRowError(f"{place}: {redact(str(error)).strip()}. Nothing was changed") from error
        except (psycopg.Error, UnicodeError) as error:
            if connection.closed and unknown:
                raise _unknown(place, error) from error
            raise _unavailable(place, error) from error
        except OSError as error:  # of this machine (no descriptor left, say), in the middle of an exchange
            if unknown:
                raise _unknown(place, error) from error
            raise _unavailable(place, error) from error


def _unavailable(place: str, error: Exception) -> StoreUnavailableError:
    return StoreUnavailableError(f"{place}: {redact(str(error)).strip()}. Nothing was changed")


def _unknown(place: str, error: Exception) -> StoreOutcomeUnknownError:
    return StoreOutcomeUnknownError(
        f"{place}: the connection broke before the answer came ({redact(str(error)).strip()}). It may have happened: "
        "read the job to find out"
    )


def _untranslatable(place: str, what: str) -> PayloadError | JobConfigError:
    reason = f"{place}: a text holds a character that the encoding of the database or connection has not"
    if what == ENQUEUE:
        return PayloadError(f"{reason}. Nothing was enqueued: use a database with ENCODING 'UTF8'")
    return JobConfigError(f"{reason}. Nothing was changed: use a database with ENCODING 'UTF8'")
