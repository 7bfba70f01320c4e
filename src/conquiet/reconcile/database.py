"""The database of reconciliation: its engine, its tables, and the one statement that differs between databases."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import cache, partial
from time import monotonic
from typing import Any

from sqlalchemy import (
    URL,
    Connection,
    Engine,
    ExceptionContext,
    Table,
    create_engine,
    event,
    func,
    make_url,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import ConnectionPoolEntry, QueuePool

from conquiet.checks import checked_seconds
from conquiet.errors import ReconcileConfigError, StoreOutcomeUnknownError, StoreUnavailableError
from conquiet.reconcile.models import Base
from conquiet.redaction import misread_url, redact, redact_dsn
from conquiet.sqlite_files import BUSY_SECONDS, set_wal

__all__ = ["SharedPool", "create_tables", "insert_or_ignore", "open_database", "patient", "translate_errors"]

_CREATING = 0x636F6E71_7265636F  # the advisory lock under which tables are created
_CONNECT_SECONDS = 3  # libpq knows whole seconds
_PATIENT_SECONDS = 600.0


def open_database(
    dsn: str, *, pool_size: int = 5, answer_seconds: float | None = None
) -> sessionmaker[Session]:
    """Open `sqlite:///file.db` or `postgresql://…`, create missing tables, and return a session factory.

    The engine is `sessions.kw["bind"]`; call its `dispose()` at the end. If the database is unreachable or refuses,
    this function and all operations on its sessions raise `StoreUnavailableError`. With `answer_seconds` they also do if
    PostgreSQL does not answer a statement for so long, or no connection becomes free.
    """
    url = _url(dsn)
    if type(pool_size) is not int or pool_size < 1:
        raise ReconcileConfigError(f"pool_size must be a whole number of at least 1, not {pool_size!r}")
    # Claims are confidential and must not appear in error messages.
    options: dict[str, Any] = {"hide_parameters": True, "poolclass": SharedPool}
    options |= {"pool_size": pool_size, "max_overflow": 2 * pool_size}
    if url.get_backend_name() == "sqlite":
        options["connect_args"] = {"timeout": BUSY_SECONDS}
    else:
        options["pool_pre_ping"] = True  # the server may have been restarted
        if answer_seconds is not None:
            answer_seconds = checked_seconds(
                "answer_seconds", answer_seconds, above_zero=True, error=ReconcileConfigError
            )
            options["pool_timeout"] = answer_seconds
    engine = create_engine(url, **options)
    translate_errors(engine, redact_dsn(dsn))
    if engine.dialect.name == "postgresql" and answer_seconds is not None:
        event.listen(engine, "do_connect", partial(_connect, answer_seconds))
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _prepare_sqlite)
    try:
        create_tables(engine)
    except BaseException:  # nobody gets the engine, so nobody else would close it
        engine.dispose()
        raise
    return sessionmaker(engine, expire_on_commit=False)


class SharedPool(QueuePool):
    """Connections for the threads of one process; raises `StoreUnavailableError` if none is free."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if not options.get(
            "echo"
        ):  # by default it would be named after this module, and not be one of SQLAlchemy's
            self.logger = logging.getLogger("sqlalchemy.pool.SharedPool")

    def _do_get(self) -> ConnectionPoolEntry:
        try:
            return super()._do_get()
        except PoolTimeoutError as error:
            raise StoreUnavailableError(
                f"all {self.size() + self._max_overflow} connections to the database of reports are in use, and none "
                f"became free within {self.timeout():g} s. Nothing was done: open it with a higher pool_size"
            ) from error


def translate_errors(engine: Engine, where: str) -> None:
    """Translate the driver's errors into conquiet's; `where` names the database in them."""
    event.listen(engine, "handle_error", partial(_translate, where))


def create_tables(engine: Engine) -> None:
    """Create missing tables. If several processes start together, one creates them and the others wait."""
    with engine.begin() as connection:
        if connection.dialect.name != "postgresql":
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            Base.metadata.create_all(connection)
            return
        with patient(connection):
            connection.execute(select(func.pg_advisory_xact_lock(_CREATING)))
            Base.metadata.create_all(connection)


@contextmanager
def patient(connection: Connection) -> Iterator[None]:
    """Let statements take longer than `answer_seconds`: those that read whole tables, or wait for other processes."""
    driver: Any = connection.connection.driver_connection
    usual = getattr(driver, "answer_seconds", None)
    if usual is None:
        yield
        return
    driver.answer_seconds = _PATIENT_SECONDS
    try:
        yield
    finally:
        driver.answer_seconds = usual


def insert_or_ignore(connection: Connection, table: Table, values: dict[str, Any]) -> bool:
    """Insert a row unless one with its key exists. Return True if it was inserted.

    While another transaction inserts the same key, both databases wait for its end.
    """
    return connection.execute(_insert_or_ignore(connection.dialect.name, table), values).rowcount == 1


@cache
def _insert_or_ignore(dialect: str, table: Table) -> Any:
    insert = postgresql.insert if dialect == "postgresql" else sqlite.insert
    # By default SQLAlchemy keeps the row count for UPDATE and DELETE only.
    return insert(table).on_conflict_do_nothing().execution_options(preserve_rowcount=True)


def _url(dsn: str) -> URL:
    url = misread = None
    try:
        misread = misread_url(dsn)
        url = make_url(dsn) if misread is None else None
    except (ArgumentError, ValueError, TypeError):  # the message may quote the password
        pass
    if url is None:
        raise ReconcileConfigError(
            f"the DSN is not a {f'usable URL ({misread})' if misread else 'URL'}: use sqlite:///reports.db or "
            "postgresql://user@host/database, and in a password %2F for /, %3A for : and %40 for @"
        )
    backend = url.get_backend_name()
    if backend == "postgresql":
        return url.set(drivername="postgresql+psycopg")
    if (
        backend == "sqlite"
        and url.database
        and ":memory:" not in url.database
        and not (url.host or url.username or url.password)
    ):
        return url
    raise ReconcileConfigError(
        f"reports are kept in a SQLite file or on PostgreSQL, not in {backend}://…: use sqlite:///reports.db "
        "or postgresql://user@host/database"
    )


def _translate(where: str, context: ExceptionContext) -> None:
    """SQLAlchemy calls this with every error of the driver, including failed connections."""
    error = context.sqlalchemy_exception
    if not isinstance(error, DBAPIError) or isinstance(error, DataError | IntegrityError):
        return  # the values are wrong, not the database
    what = f"{where}: {redact(str(context.original_exception)).strip()}"
    if context.is_disconnect and context.connection is not None and context.statement is None:  # at COMMIT
        raise StoreOutcomeUnknownError(f"{what}. It may have been committed: read it to find out") from error
    raise StoreUnavailableError(f"{what}. Nothing was committed") from error


def _connect(answer_seconds: float, dialect: Any, _record: Any, arguments: Any, options: Any) -> Any:
    connection = _limited_connections(dialect.loaded_dbapi).connect(
        *arguments, **{"connect_timeout": _CONNECT_SECONDS} | dict(options)
    )
    connection.answer_seconds = answer_seconds
    return connection


@cache
def _limited_connections(psycopg: Any) -> Any:
    """The class of connections that wait only so long for the server. psycopg has no such limit of its own."""

    class LimitedConnection(psycopg.Connection):  # type: ignore[misc]
        answer_seconds = float(_CONNECT_SECONDS)

        def wait(self, gen: Any, *arguments: Any, **options: Any) -> Any:
            return super().wait(self._limited(gen), *arguments, **options)

        def _limited(self, answers: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
            end = monotonic() + self.answer_seconds
            try:
                wanted = next(answers)
                while True:
                    ready = yield wanted
                    if not ready and monotonic() >= end:  # woken without data, which happens every 0.1 s
                        self.pgconn.finish()
                        raise psycopg.OperationalError(
                            f"the server did not answer within {self.answer_seconds:g} s"
                        )
                    wanted = answers.send(ready)
            except StopIteration as done:
                return done.value

    return LimitedConnection


def _prepare_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    set_wal(connection)  # readers do not wait for the writer
    connection.execute("PRAGMA synchronous = FULL")  # a commit survives a power failure
    connection.execute("PRAGMA foreign_keys = ON")
