"""The connections of the PostgreSQL store: a limited number, taken for one statement each, checked before use, closed when
they are idle, not shared after a fork.

Errors of psycopg are translated here.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar

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
from conquiet.flow import Call, Flow, Places
from conquiet.jobs.backends.postgres.listener import AsyncListener, Listener, is_quiet, listen_statement
from conquiet.observe import ConnectionsInUse, SafeLogger
from conquiet.redaction import redact_dsn, without_password

__all__ = ["ENQUEUE", "PostgresConnections"]

ENQUEUE = "enqueue"  # the only step where a unique violation is an error of the caller

T = TypeVar("T")

_WAIT_SECONDS = 30.0  # for a connection that another call uses
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
# claim takes as long as running it, and PostgreSQL would plan it anew each time. Without jit, because it would compile the
# claim each time when many jobs are delayed, which takes ten times as long as running it. With keepalives the server notices a
# worker whose machine is gone: until then the rows of its transaction stay locked and cannot be claimed. (Keepalives
# have no effect on a Unix socket.)
# Our statements are written for read committed; those of handlers get the level of the database or DSN, which this returns.
_SET = """
WITH given AS MATERIALIZED (SELECT current_setting('default_transaction_isolation') AS level)
SELECT given.level,
    set_config('default_transaction_isolation', 'read committed', false),
    set_config('timezone', 'UTC', false),
    set_config('plan_cache_mode', 'force_generic_plan', false),
    set_config('jit', 'off', false),
    set_config('tcp_keepalives_idle', '10', false),
    set_config('tcp_keepalives_interval', '5', false),
    set_config('tcp_keepalives_count', '3', false),
    set_config('idle_session_timeout', %s, false)
FROM given WHERE pg_backend_pid() = %s
"""
_LEVEL = "SELECT current_setting('default_transaction_isolation')"
# Read-only, because it is a standby or is being replaced; ended by an administrator, a crash, at the end of recovery, with
# the database, for being idle.
_ELSEWHERE = ("25006", "57P01", "57P02", "57P03", "57P04", "57P05")
_log = SafeLogger("conquiet.jobs")
_INHERITED: list[Any] = []  # connections of the parent process, kept open but unused in a fork


class PostgresConnections:
    """At most `max_connections` for callers; beyond them what workers need: one for each of their parts that asks the store
    (claims, heartbeats, settles), one that listens, and one for each handler in a transaction. These never wait for a place, so
    that handlers which hold all of the others cannot keep their own worker from extending leases.
    """

    idle_seconds: float = 60.0  # a connection that was not used for so long is closed
    listening_seconds: float = 1.0  # whoever has not waited for so long is busy and reads no notifications
    _waits: ClassVar[bool] = True  # for a place

    def __init__(self, dsn: str, *, awaits: bool, max_connections: int) -> None:
        self.dsn = dsn
        self._awaits = awaits
        self._where = redact_dsn(dsn)
        self._max_connections = max_connections
        self._places = Places(max_connections)
        self._idle: deque[tuple[Any, float]] = deque()  # the last used one last, with the time of its return
        self._listeners: list[
            Listener
        ] = []  # as many as have waited at the same time; they keep listening for a while
        self._in_use = ConnectionsInUse()
        self._closed = False
        self._pooled = self._polls = False  # whether a pooler is in between, and whether that was logged
        self._pid = os.getpid()

    def close(self) -> Flow[None]:
        self._closed = True
        yield from self._drop_connections()

    def _listener(self, queues: Sequence[str]) -> Flow[Listener]:
        """Return a connection that listens to these queues, and to no others."""
        listener = self._listeners.pop() if self._listeners else (yield from self._connect_listener())
        if listener.queues != tuple(queues):
            with self._translated("listen", listener.connection):
                step = Call(listener.connection.execute, listen_statement(queues))
                yield from self._first_step(listener, step)
            listener.queues = tuple(queues)
        return listener

    def _connect_listener(self) -> Flow[Listener]:
        connection = yield from self._connect()
        with self._translated("listen", connection):
            # It is idle by design, so the server must not close it for that.
            yield from self._first_step(connection, Call(connection.execute, "SET idle_session_timeout TO 0"))
        try:
            return AsyncListener(connection) if self._awaits else Listener(connection)
        except OSError as error:  # no file descriptor left
            yield Call(connection.close, shield=True)
            raise StoreUnavailableError(f"listen on {self._where}: {error}") from error

    def _drop_connections(self) -> Flow[None]:
        closing = [idle.close for idle, _ in self._idle]
        self._idle = deque()
        for close in closing:
            yield Call(close, shield=True)
        yield from self.rest()

    def rest(self) -> Flow[None]:
        dropped, self._listeners = self._listeners, []
        for listener in dropped:
            yield Call(listener.close, shield=True)

    def _forget_parents_connections(self) -> None:
        """After a fork, keep away from the parent's connections: using or closing them would disturb the parent."""
        if os.getpid() != self._pid:
            _INHERITED.extend([*self._idle, *self._listeners])
            self._idle, self._listeners, self._pid = deque(), [], os.getpid()
            self._in_use.clear()
            self._places = Places(self._max_connections)  # threads that have one in the parent are not here

    def _connect(self) -> Flow[Any]:
        if self._closed:
            raise StoreClosedError(f"the store on {self._where} is closed")
        connect = psycopg.AsyncConnection.connect if self._awaits else psycopg.Connection.connect
        unreachable: Exception | None
        try:
            settings: dict[str, Any] = {**_CONNECTION, **conninfo_to_dict(self.dsn)}
            if "," in str(settings.get("host", "")):  # several servers: a standby takes no jobs
                settings.setdefault("target_session_attrs", "read-write")
            settings |= {**_ENCODING, "autocommit": True}
            connection: Any = yield Call(lambda: connect(**settings))
            # The server closes what a process leaves idle that makes no more calls. It does so later than we would, so
            # that it never closes a connection that is just being used.
            limit = str(int(self.idle_seconds * 2000))
            values = (limit, connection.info.backend_pid)
            cursor = yield from self._first_step(connection, Call(connection.execute, _SET, values))
            row = yield from self._first_step(connection, Call(cursor.fetchone))
            self._pooled = row is None
            if row is None:
                # The server is another one than the one that we connected to: a pooler such as PgBouncer, which may give each
                # transaction another server. Nothing can be kept there: no settings, no prepared statements, no LISTEN.
                connection.prepare_threshold = None
                cursor = yield from self._first_step(connection, Call(connection.execute, _LEVEL))
                row = yield from self._first_step(connection, Call(cursor.fetchone))
            vars(connection)["isolation_of_handlers"] = row[0]
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

    def _after_refusal(self, connection: Any, error: BaseException) -> Flow[None]:
        """Close what leads to a server that no longer works for us, so that the next call connects anew.

        That may be another server, behind the same name or among the hosts of the DSN.
        """
        cause = error.__cause__
        if isinstance(cause, OSError) or getattr(cause, "sqlstate", None) in _ELSEWHERE:
            yield Call(connection.close, shield=True)
        if connection.closed:  # the idle ones lead to the same server
            yield from self._drop_connections()

    def _first_step(self, connection: Any, step: Call) -> Flow[Any]:
        """Run `step` on a connection that is not stored anywhere yet; close it if the step fails or is cancelled."""
        try:
            return (yield step)
        except BaseException:
            yield Call(connection.close, shield=True)
            raise

    def _placed(self, asking: Flow[T]) -> Flow[T]:
        """Run `asking` when fewer than `max_connections` others do."""
        if not self._waits:
            return (yield from asking)
        self._forget_parents_connections()
        places = self._places
        if not (yield from places.take(_WAIT_SECONDS)):
            raise StoreUnavailableError(
                f"{self._where}: no connection was free within {_WAIT_SECONDS:g} s, because other calls use all "
                f"{self._max_connections} that this store may open. Nothing was changed: make fewer calls at a time, or "
                "open the store with a higher max_connections="
            )
        try:
            return (yield from asking)
        finally:
            places.give_back()

    def _take(self) -> Flow[Any]:
        connection = yield from self._free()
        self._in_use.take(connection)
        return connection

    def _free(self) -> Flow[Any]:
        self._forget_parents_connections()
        while True:
            try:
                connection, since = self._idle.pop()  # after a check another thread could pop first
            except IndexError:
                return (yield from self._connect())
            if not connection.closed and is_quiet(connection) and not self._is_old(since):
                return connection
            yield Call(connection.close, shield=True)  # the server has closed it, or soon will

    def _give_back(self, connection: Any) -> Flow[None]:
        self._in_use.give_back(connection)
        if self._closed:
            yield Call(connection.close, shield=True)
        elif not connection.closed:
            self._idle.append((connection, time.monotonic()))
            yield from self._close_old()
            if self._listeners:
                yield from self._unlisten_busy()

    def _close_old(self) -> Flow[None]:
        while self._idle:
            try:
                if not self._is_old(self._idle[0][1]):
                    return
                connection, _ = self._idle.popleft()
            except IndexError:  # other threads have taken them
                return
            yield Call(connection.close, shield=True)

    def _unlisten_busy(self) -> Flow[None]:
        before = time.monotonic() - self.listening_seconds
        for listener in [one for one in self._listeners if one.queues and one.since <= before]:
            try:
                self._listeners.remove(listener)
            except ValueError:  # another thread has taken it
                continue
            try:
                yield listener.unlisten()
            except (psycopg.Error, OSError) as error:  # the next wait connects anew
                _log.debug("a connection that listened is lost: %s", redact(str(error)))
                yield Call(listener.close, shield=True)
            except BaseException:  # cancellation included: its answer may be half read
                yield Call(listener.close, shield=True)
                raise
            else:
                self._listeners.append(listener)
                if self._closed:
                    yield from self.rest()

    def _is_old(self, since: float) -> bool:
        return time.monotonic() - since >= self.idle_seconds

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
