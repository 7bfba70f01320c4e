"""The caller's transaction, on every kind of connection: an effect and a job's move commit together or not at all."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import psycopg
import pytest
from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.orm import Session

from conquiet.errors import StoreUnavailableError
from conquiet.jobs import DuplicateJobError, JobConfigError, JobState, NewJob, StaleLeaseError
from tests.conformance.sources import PostgresSource, SqliteSource

QUEUE = "orders"


class Abandoned(Exception):
    """Raised in a transaction to have it rolled back."""


class Database:
    """A store's database with a table `effects`, used through one kind of connection."""

    def __init__(self, source: Any, connect: Callable[[Any], AbstractContextManager[Any]], run: Any) -> None:
        self.store = source.open()
        self._source = source
        self._connect = connect
        self._run = run
        with connect(source) as connection:
            run(connection, "DROP TABLE IF EXISTS effects")
            run(connection, "CREATE TABLE effects (n int)")

    def transaction(self) -> AbstractContextManager[Any]:
        return self._connect(self._source)

    def effect(self, connection: Any) -> None:
        self._run(connection, "INSERT INTO effects VALUES (1)")

    def effects(self) -> int:
        with self._connect(self._source) as connection:
            return int(self._run(connection, "SELECT count(*) FROM effects").fetchone()[0])


@contextmanager
def plain(source: Any) -> Iterator[Any]:
    """sqlite3 or psycopg with their defaults: a transaction begins with the first change."""
    with source.transaction() as connection:
        yield connection


@contextmanager
def by_hand(source: Any) -> Iterator[Any]:
    """A connection in autocommit, with a transaction begun explicitly."""
    if isinstance(source, PostgresSource):
        with psycopg.connect(source.dsn, autocommit=True) as connection, connection.transaction():
            yield connection
        return
    lite = sqlite3.connect(source.path, isolation_level=None)
    try:
        lite.execute("BEGIN")
        with lite:
            yield lite
    finally:
        lite.close()


def _engine(source: Any) -> Any:
    scheme, _, rest = source.dsn.replace("?synchronous=NORMAL", "").partition("://")
    return create_engine(
        {"postgresql": "postgresql+psycopg"}.get(scheme, scheme) + "://" + rest, poolclass=NullPool
    )


@contextmanager
def engine_begin(source: Any) -> Iterator[Any]:
    with _engine(source).begin() as connection:
        yield connection


@contextmanager
def engine_connect(source: Any) -> Iterator[Any]:
    """SQLAlchemy's commit-as-you-go: the first statement begins the transaction."""
    with _engine(source).connect() as connection:
        yield connection
        connection.commit()


@contextmanager
def session(source: Any) -> Iterator[Any]:
    with Session(_engine(source)) as opened:
        yield opened
        opened.commit()


def _driver_sql(connection: Any, sql: str) -> Any:
    return connection.execute(sql)


def _alchemy_sql(connection: Any, sql: str) -> Any:
    return connection.execute(text(sql))


CONNECTIONS = {plain: _driver_sql, by_hand: _driver_sql}
CONNECTIONS |= dict.fromkeys([engine_begin, engine_connect, session], _alchemy_sql)


@pytest.fixture(params=CONNECTIONS, ids=lambda connect: connect.__name__)
def database(request: pytest.FixtureRequest, kind: str, tmp_path: Any) -> Iterator[Database]:
    source: Any
    if kind == "sqlite":
        source = SqliteSource(tmp_path, None)
    else:
        dsn, admin = request.getfixturevalue("moved_database")
        source = PostgresSource(dsn, admin, None)
    yield Database(source, request.param, CONNECTIONS[request.param])
    source.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.clause("J-29")
@pytest.mark.parametrize("first", ["effect", "enqueue"])
def test_a_job_and_an_effect_commit_together(database: Database, first: str) -> None:
    with database.transaction() as connection:
        if first == "effect":
            database.effect(connection)
        given = database.store.enqueue(QUEUE, {"n": 1}, id="a", connection=connection)
        database.store.enqueue_many(QUEUE, [NewJob({}, id="b"), NewJob({}, id="c")], connection=connection)
        if first == "enqueue":
            database.effect(connection)
        assert database.store.list() == []
    assert database.effects() == 1
    assert database.store.get("a") == given
    assert [job.id for job in database.store.claim(QUEUE, 10)] == ["a", "b", "c"]


@pytest.mark.clause("J-29")
def test_a_job_alone_commits(database: Database) -> None:
    with database.transaction() as connection:
        database.store.enqueue(QUEUE, {}, id="a", connection=connection)
        assert database.store.get("a") is None
    assert database.store.get("a") is not None


@pytest.mark.clause("J-29")
@pytest.mark.parametrize("first", ["effect", "enqueue"])
def test_or_neither_does(database: Database, first: str) -> None:
    def work(connection: Any) -> None:
        if first == "effect":
            database.effect(connection)
        database.store.enqueue(QUEUE, {}, id="a", connection=connection)
        database.effect(connection)
        raise Abandoned

    with pytest.raises(Abandoned), database.transaction() as connection:
        work(connection)
    assert database.effects() == 0
    assert database.store.list() == []


@pytest.mark.clause("J-29", "J-03")
def test_a_refused_duplicate_leaves_the_callers_work_alone(database: Database) -> None:
    database.store.enqueue(QUEUE, {}, id="taken")
    with database.transaction() as connection:
        database.effect(connection)
        database.store.enqueue(QUEUE, {}, id="first", connection=connection)
        items = [NewJob({}, id="lost"), NewJob({}, id="taken"), NewJob({}, id="first")]
        with pytest.raises(DuplicateJobError) as refused:
            database.store.enqueue_many(QUEUE, items, connection=connection)
        assert refused.value.ids == ("taken", "first")
        database.effect(connection)
    assert database.effects() == 2
    assert [job.id for job in database.store.list()] == ["taken", "first"]


@pytest.mark.clause("J-30")
@pytest.mark.parametrize("first", ["effect", "ack"])
def test_an_ack_and_an_effect_commit_together(database: Database, first: str) -> None:
    database.store.enqueue(QUEUE, {})
    (held,) = database.store.claim(QUEUE)
    with database.transaction() as connection:
        if first == "effect":
            database.effect(connection)
        database.store.ack(held, connection=connection)
        if first == "ack":
            database.effect(connection)
        assert database.store.get(held.id) == held
    assert database.effects() == 1
    done = database.store.get(held.id)
    assert (done.state, [attempt.outcome for attempt in done.attempts]) == (JobState.SUCCEEDED, ["succeeded"])


@pytest.mark.clause("J-30")
def test_or_neither_happens(database: Database) -> None:
    database.store.enqueue(QUEUE, {})
    (held,) = database.store.claim(QUEUE)

    def work(connection: Any) -> None:
        database.effect(connection)
        database.store.ack(held, connection=connection)
        raise Abandoned

    with pytest.raises(Abandoned), database.transaction() as connection:
        work(connection)
    assert database.effects() == 0
    assert database.store.get(held.id) == held
    database.store.ack(held)


@pytest.mark.clause("J-30", "J-09")
def test_a_worker_that_was_overtaken_loses_its_effect(database: Database) -> None:
    database.store.enqueue(QUEUE, {})
    (old,) = database.store.claim(QUEUE, lease_ttl=10.0)
    database._source.advance(10.0)
    (new,) = database.store.claim(QUEUE, lease_ttl=10.0)

    def work(connection: Any) -> None:
        database.effect(connection)
        database.store.ack(old, connection=connection)

    with pytest.raises(StaleLeaseError), database.transaction() as connection:
        work(connection)
    assert database.effects() == 0
    assert database.store.get(new.id) == new
    with database.transaction() as connection:
        database.effect(connection)
        database.store.ack(new, connection=connection)
    assert database.effects() == 1


@pytest.mark.clause("J-30", "J-12")
def test_nobody_claims_a_job_whose_ack_is_about_to_commit(
    moved_database: tuple[str, psycopg.Connection],
) -> None:
    """PostgreSQL: even if the lease expires meanwhile, the row is locked and is skipped until the transaction ends."""
    source = PostgresSource(*moved_database, None)
    store, other = source.open(), source.open()
    store.enqueue_many(QUEUE, [NewJob({}, id="kept"), NewJob({}, id="given up")])
    kept, given_up = store.claim(QUEUE, 2, lease_ttl=10.0)
    with psycopg.connect(source.dsn) as first, psycopg.connect(source.dsn) as second:
        store.ack(kept, connection=first)
        store.ack(given_up, connection=second)
        # Heartbeats do not wait for the locks.
        assert [result.ok for result in store.heartbeat_many([kept, given_up])] == [True, True]
        source.advance(10.0)
        assert other.claim(QUEUE, 10) == []
        first.commit()
        second.rollback()
    assert store.get("kept").state is JobState.SUCCEEDED
    assert [job.id for job in other.claim(QUEUE, 10)] == ["given up"]
    source.close()


@pytest.mark.clause("J-30")
@pytest.mark.parametrize("variant", ["sync", "async"])
def test_a_transaction_that_holds_sqlites_lock_outlives_the_lease(
    tmp_path: Any, loop_thread: Any, variant: str
) -> None:
    """Its lock keeps out heartbeats and claims, so the token alone decides whether the job is still its own."""
    source = SqliteSource(tmp_path, loop_thread if variant == "async" else None)
    store = source.open()
    store.enqueue(QUEUE, {})
    (held,) = store.claim(QUEUE, lease_ttl=10.0)
    with source.transaction() as connection:
        connection.execute("BEGIN IMMEDIATE")
        source.advance(1000.0)
        store.ack(held, connection=connection)
    assert store.get(held.id).state is JobState.SUCCEEDED
    source.close()


@pytest.mark.clause("J-30", "J-09")
@pytest.mark.parametrize("begin", ["", "BEGIN", "BEGIN IMMEDIATE"])
def test_but_not_the_next_claim(tmp_path: Any, begin: str) -> None:
    source = SqliteSource(tmp_path, None)
    store = source.open()
    store.enqueue(QUEUE, {})
    (old,) = store.claim(QUEUE, lease_ttl=10.0)
    source.advance(10.0)
    (new,) = store.claim(QUEUE, lease_ttl=10.0)
    with source.transaction() as connection:
        connection.execute(begin)
        with pytest.raises(StaleLeaseError):
            store.ack(old, connection=connection)
    assert store.get(new.id) == new
    source.close()


@pytest.mark.clause("J-29", "J-30")
def test_a_connection_that_commits_by_itself_is_refused(durable: Any) -> None:
    """There would be no transaction to be part of, and nothing to roll back."""
    store = durable.open()
    store.enqueue(QUEUE, {})
    (held,) = store.claim(QUEUE)
    if isinstance(durable, SqliteSource):
        connection: Any = sqlite3.connect(durable.path, isolation_level=None, check_same_thread=False)
    else:
        connection = psycopg.connect(durable.dsn, autocommit=True)
    with pytest.raises(JobConfigError, match="commits every statement by itself"):
        store.enqueue(QUEUE, {}, connection=connection)
    with pytest.raises(JobConfigError, match="commits every statement by itself"):
        store.enqueue_many(QUEUE, [{}], connection=connection)
    with pytest.raises(JobConfigError, match="commits every statement by itself"):
        store.ack(held, connection=connection)
    connection.close()
    assert store.list() == [held]


@pytest.mark.clause("J-29")
def test_an_id_of_a_transaction_in_progress_is_waited_for(
    moved_database: tuple[str, psycopg.Connection],
) -> None:
    """PostgreSQL: whether the id is a duplicate is known only when the other transaction ends."""
    source = PostgresSource(*moved_database, None)
    store = source.open()
    for outcome, refused in (("commit", True), ("rollback", False)):
        with psycopg.connect(source.dsn) as connection, ThreadPoolExecutor(1) as beside:
            store.enqueue(QUEUE, {"by": "first"}, id=outcome, connection=connection)
            second = beside.submit(store.enqueue, QUEUE, {"by": "second"}, id=outcome)
            source.wait_for_a_lock()
            getattr(connection, outcome)()
            assert isinstance(second.exception(60), DuplicateJobError) == refused
    assert [job.payload["by"] for job in store.list()] == ["first", "second"]
    source.close()


@pytest.mark.clause("J-29", "J-03")
def test_no_id_is_added_between_looking_and_inserting(tmp_path: Any) -> None:
    """SQLite: the lock for the insert is taken before the check for duplicates."""
    source = SqliteSource(tmp_path, None)
    store, other = source.open(), source.open()
    store.enqueue(QUEUE, {}, id="taken")
    other.operations.backend._connection.execute("PRAGMA busy_timeout = 20")
    with source.transaction() as connection:
        with pytest.raises(DuplicateJobError):
            store.enqueue(QUEUE, {}, id="taken", connection=connection)
        with pytest.raises(StoreUnavailableError, match="locked"):
            other.enqueue(QUEUE, {}, id="new")
        store.enqueue(QUEUE, {}, id="new", connection=connection)
    assert [job.id for job in store.list()] == ["taken", "new"]
    source.close()


@pytest.mark.clause("J-30")
def test_a_transaction_that_is_lost_is_an_outage(moved_database: tuple[str, psycopg.Connection]) -> None:
    dsn, admin = moved_database
    source = PostgresSource(dsn, admin, None)
    store = source.open()
    store.enqueue(QUEUE, {})
    (held,) = store.claim(QUEUE)
    connection = psycopg.connect(dsn)
    admin.execute("SELECT pg_terminate_backend(%s)", (connection.info.backend_pid,))
    with pytest.raises(StoreUnavailableError, match="connection="):
        store.ack(held, connection=connection)
    connection.close()
    assert store.list() == [held]
    source.close()
