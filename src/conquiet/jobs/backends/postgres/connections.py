"""The connections of the PostgreSQL store: taken for one statement each, checked before use, not shared after a fork.

Errors of psycopg are translated here.
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

ENQUEUE = "enqueue"  # the only step where a unique violation is an error of the caller

_CHANNEL = "conquiet_jobs"
# A server that disappears silently must not block a worker for as long as TCP's defaults. The DSN can override these.
_CONNECTION = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
# This overrides the database and the DSN: with another encoding some texts could not be sent, or not be read as text.
_ENCODING = {"client_encoding": "UTF8"}
# UTC is for the datetimes that a handler reads on a connection of ours. The generic plan is used because planning the
# claim takes as long as running it, and PostgreSQL would plan it anew each time. With keepalives the server notices a
# worker whose machine is gone: until then the rows of its transaction stay locked and cannot be claimed. (Keepalives
# have no effect on a Unix socket.)
_SETS = (
    "SET timezone TO 'UTC'; SET plan_cache_mode TO force_generic_plan; "
    "SET tcp_keepalives_idle TO 10; SET tcp_keepalives_interval TO 5; SET tcp_keepalives_count TO 3"
)
_INHERITED: list[Any] = []  # connections of the parent process, kept open but unused in a fork


class PostgresConnections:
    def __init__(self, dsn: str, *, awaits: bool) -> None:
        self.dsn = dsn
        self._awaits = awaits
        self._where = redact_dsn(dsn)
        self._idle: list[Any] = []
        self._listeners: list[
            Listener
        ] = []  # as many as have waited at the same time; they keep listening when idle
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
        """After a fork, keep away from the parent's connections: using or closing them would disturb the parent."""
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
        except UnicodeError:  # its text is not shown: it may contain a password
            unreachable = None
        except OSError as error:  # a local error, such as no file descriptor left
            unreachable = error
        if unreachable is None:
            raise JobConfigError(
                f"{self._where} is not valid text, or its host name is invalid: the parts of a host name between "
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
        """Run `step` on a connection that is not stored anywhere yet; close it if the step fails or is cancelled."""
        try:
            yield step
        except BaseException:
            yield Call(connection.close, shield=True)
            raise

    def _take(self) -> Flow[Any]:
        self._forget_parents_connections()
        while True:
            try:
                connection = self._idle.pop()  # after a check of the list another thread could pop first
            except IndexError:
                return (yield from self._connect())
            if not connection.closed and is_quiet(connection):
                return connection
            yield Call(connection.close, shield=True)  # the server has closed it

    def _give_back(self, connection: Any) -> Flow[None]:
        if self._closed:
            yield Call(connection.close, shield=True)
        elif not connection.closed:
            self._idle.append(connection)

    @contextmanager
    def _translated(self, what: str, connection: Any, unknown: bool = False, theirs: bool = False):  # type: ignore[no-untyped-def]
        """Translate errors of psycopg. `theirs`: the statement runs in the caller's transaction."""
        place = f"{what} {'in the transaction given as connection=' if theirs else f'on {self._where}'}"
        try:
            yield
        except pg.UniqueViolation as error:
            if what == ENQUEUE:
                raise
            raise _unavailable(place, error) from error
        except (pg.UntranslatableCharacter, UnicodeEncodeError) as error:
            raise _untranslatable(place, what) from error
        except psycopg.DataError as error:  # our own values are checked, so the bad value is in a row
            raise DamagedRowError(f"{place}: {redact(str(error)).strip()}. Nothing was changed") from error
        except (psycopg.Error, UnicodeError) as error:
            if connection.closed and unknown:
                raise _unknown(place, error) from error
            raise _unavailable(place, error) from error
        except (
            OSError
        ) as error:  # a local error (such as no descriptor left) during the exchange with the server
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
    reason = f"{place}: a text contains a character that the encoding of the database or connection lacks"
    if what == ENQUEUE:
        return PayloadError(f"{reason}. Nothing was enqueued: use a database with ENCODING 'UTF8'")
    return JobConfigError(f"{reason}. Nothing was changed: use a database with ENCODING 'UTF8'")
