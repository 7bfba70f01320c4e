"""Unusual errors of a database are raised as ours: nothing is half done, and the store goes on working."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine

from conquiet.embedded import PostgresServer
from conquiet.errors import PayloadError
from conquiet.jobs import (
    Job,
    JobConfigError,
    JobState,
    JobWorker,
    NewJob,
    StoreUnavailableError,
    open_store,
)
from conquiet.sqlite_files import opened, transaction
from tests.conformance.sources import Source
from tests.integration.queue.variants import LoopThread

QUEUE = "orders"
DENIED = (sqlite3.SQLITE_DENY, sqlite3.SQLITE_OK)


@pytest.fixture(params=["sync", "async"])
def source(request: pytest.FixtureRequest) -> Iterator[Source]:
    loop: LoopThread | None = request.getfixturevalue("loop_thread") if request.param == "async" else None
    made = Source(loop)
    yield made
    made.close()


def backend_of(store: Any) -> Any:
    return getattr(store, "_target", store).operations.backend


def refusing(*actions: tuple[int, str]) -> Callable[..., int]:
    """An authorizer, with which SQLite refuses these actions."""
    return lambda action, first, *_: DENIED[(action, first) not in actions]


def test_a_rollback_that_fails_does_not_hide_what_went_wrong_first(source: Source, tmp_path: Path) -> None:
    store = source.open_dsn(f"sqlite:///{tmp_path}/jobs.db")
    store.enqueue(QUEUE, {}, id="a")
    refused = refusing((sqlite3.SQLITE_TRANSACTION, "ROLLBACK"), (sqlite3.SQLITE_UPDATE, "conquiet_jobs"))
    backend_of(store)._connection.set_authorizer(refused)
    with pytest.raises(StoreUnavailableError, match="prohibited|not authorized"):
        store.claim(QUEUE)
    # That connection is gone, together with the authorizer and its transaction.
    (job,) = store.claim(QUEUE)
    store.ack(job)
    assert store.get("a").state is JobState.SUCCEEDED


def test_the_same_where_other_rooms_use_a_file(tmp_path: Path) -> None:
    path = str(tmp_path / "other.db")
    with opened(path) as connection:
        connection.execute("CREATE TABLE kept (n)")
        connection.set_authorizer(refusing((sqlite3.SQLITE_TRANSACTION, "ROLLBACK")))

        def keep() -> None:
            with transaction(connection, "keep"):
                connection.execute("INSERT INTO kept VALUES (1)")
                connection.execute("INSERT INTO nowhere VALUES (1)")

        with pytest.raises(StoreUnavailableError, match="keep: SQLite: no such table: nowhere"):
            keep()
    with opened(path) as connection:
        assert connection.execute("SELECT count(*) FROM kept").fetchone() == (0,)


def test_a_file_that_is_damaged_in_its_middle(source: Source, tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    store = source.open_dsn(f"sqlite:///{path}")
    store.enqueue_many(QUEUE, [NewJob({"x": "y" * 900}, f"job {n}") for n in range(2_000)])
    held = store.claim(QUEUE, 5)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with path.open("r+b") as file:
        for place in range(20 * 4096, os.path.getsize(path) - 4096, 2 * 4096):
            file.seek(place)
            file.write(b"\xff" * 4096)
    calls: list[Callable[[], Any]] = [
        lambda: store.list(limit=10_000),
        lambda: store.stats(),
        lambda: store.claim(QUEUE, 1_000),
        lambda: store.prune(0.0),
        lambda: store.heartbeat_many(held),
        lambda: store.ack_many(held),
        lambda: store.nack_many(held),
        lambda: store.enqueue_many(QUEUE, [NewJob({}, f"job {n}") for n in range(2_000)]),
        lambda: store.enqueue_many(
            QUEUE, [NewJob({}, f"job {n}") for n in range(2_000)], on_duplicate="skip"
        ),
        lambda: [store.get(f"job {n}") for n in range(2_000)],
    ]
    refused = []
    store = source.open_dsn(f"sqlite:///{path}")  # a new store, with nothing cached
    for call in calls:
        try:
            call()
        except StoreUnavailableError as error:
            refused.append(str(error))
    assert len(refused) >= 5
    assert [text for text in refused if "malformed" not in text] == []


def test_a_constraint_of_somebody_else(source: Source, tmp_path: Path) -> None:
    store = source.open_dsn(f"sqlite:///{tmp_path}/jobs.db")
    store.enqueue(QUEUE, {}, id="a")
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection:
        for event in ("INSERT", "UPDATE"):
            connection.execute(
                f"CREATE TRIGGER no_{event} BEFORE {event} ON conquiet_jobs BEGIN SELECT RAISE(ABORT, 'not today'); END"
            )
    for call in (lambda: store.claim(QUEUE), lambda: store.enqueue(QUEUE, {})):
        with pytest.raises(StoreUnavailableError, match="not today. Nothing was changed"):
            call()
    assert [job.state for job in store.list()] == [JobState.READY]


def test_a_constraint_of_somebody_else_on_postgresql(source: Source, fresh_dsn: str) -> None:
    store = source.open_dsn(fresh_dsn)
    store.enqueue_many(QUEUE, [NewJob({}, "a"), NewJob({}, "b")])
    with psycopg.connect(fresh_dsn, autocommit=True) as admin:
        admin.execute("CREATE UNIQUE INDEX one_worker ON conquiet_jobs (lease_worker)")
    with pytest.raises(StoreUnavailableError, match="one_worker"):
        store.claim(QUEUE, 2)
    assert [job.state for job in store.list()] == [JobState.READY] * 2


def test_a_connection_that_is_closed_is_refused(source: Source, tmp_path: Path) -> None:
    store = source.open_dsn(f"sqlite:///{tmp_path}/jobs.db")
    connection = sqlite3.connect(tmp_path / "jobs.db")
    connection.close()
    with pytest.raises(JobConfigError, match="takes an open connection"):
        store.enqueue(QUEUE, {}, connection=connection)
    engine = create_engine(f"sqlite:///{tmp_path}/jobs.db")
    with engine.connect() as through:
        pass
    with pytest.raises(StoreUnavailableError, match="SQLAlchemy connection given as connection=.*closed"):
        store.enqueue(QUEUE, {}, connection=through)
    engine.dispose()
    assert store.list() == []


@pytest.fixture(params=["SQL_ASCII", "LATIN1"])
def encoding(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def encoded(quick_postgres: PostgresServer, encoding: str) -> Iterator[str]:
    """A database that is not in UTF-8."""
    with psycopg.connect(quick_postgres.dsn, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE encoded ENCODING '{encoding}' TEMPLATE template0 LOCALE 'C'")
    yield quick_postgres.dsn.rpartition("/")[0] + "/encoded"
    quick_postgres.drop_database("encoded")


def test_every_text_comes_back_or_is_refused_whatever_the_encoding(
    source: Source, encoded: str, encoding: str
) -> None:
    store = source.open_dsn(f"{encoded}?client_encoding=SQL_ASCII")
    store.enqueue("grün", {"ä": "ö"}, id="ü", correlation_id="ß")
    if encoding == "LATIN1":
        for new in (NewJob({"a": "中"}), NewJob({}, "中"), NewJob({}, correlation_id="中")):
            with pytest.raises(PayloadError, match="Nothing was enqueued: .* ENCODING 'UTF8'"):
                store.enqueue_many("grün", [NewJob({}), new])
        for refused in (lambda: store.get("中"), lambda: store.claim("中"), lambda: store.stats("中")):
            with pytest.raises(JobConfigError, match="ENCODING 'UTF8'"):
                refused()
    else:
        store.enqueue("中", {"中": "€"}, id="中")
        assert store.get("中").payload == {"中": "€"}
        assert sorted(store.stats()) == ["grün", "中"]
    assert [job.payload for job in store.list(queue="grün")] == [{"ä": "ö"}]
    (job,) = store.claim("grün", worker="wörker")
    assert (job.id, job.queue, job.correlation_id, job.lease.worker) == ("ü", "grün", "ß", "wörker")
    store.nack(job, "10 € 中", retryable=False)
    failed = store.get("ü")
    assert failed.error == ("10 € 中" if encoding == "SQL_ASCII" else "10 \\u20ac \\u4e2d")
    assert failed.attempts[0].error_message == failed.error


def test_a_worker_goes_on_whatever_the_encoding(encoded: str) -> None:
    def handler(job: Job) -> None:
        raise RuntimeError("10 € 中")

    with open_store(encoded) as store:
        store.enqueue_many(QUEUE, [NewJob({}, str(n), max_retries=0) for n in range(3)])
        assert JobWorker(store, handler, queues=QUEUE).run_until_idle().failed == 3


@pytest.mark.parametrize("encoding", ["SQL_ASCII"])
@pytest.mark.parametrize("column", ["id", "correlation_id", "error"])
def test_a_text_that_is_none_in_a_database_without_encoding(
    source: Source, encoded: str, column: str
) -> None:
    """The server does not send such a text. A claim sets the row aside and serves the others."""
    store = source.open_dsn(encoded)
    store.enqueue_many(QUEUE, [NewJob({}, id) for id in ("first", "bad", "last")])
    with psycopg.connect(encoded, autocommit=True) as admin:
        admin.execute(
            f"UPDATE conquiet_jobs SET {column} = convert_from('\\xff41', 'SQL_ASCII') WHERE id = 'bad'"
        )
        with pytest.raises(StoreUnavailableError, match="invalid byte sequence.*Nothing was changed"):
            store.list()
        assert [job.id for _ in range(2) for job in store.claim(QUEUE, 5)] == ["first", "last"]
        assert store.claim(QUEUE, 5) == []
        if column != "error":
            admin.execute(f"UPDATE conquiet_jobs SET {column} = 'bad' WHERE id NOT IN ('first', 'last')")
    (failed,) = store.list(state=JobState.FAILED)
    assert failed.id == "bad"
    assert failed.error.startswith("its row cannot be read: invalid byte sequence")


def test_a_transaction_in_another_encoding(encoded: str, encoding: str) -> None:
    with open_store(encoded) as store, psycopg.connect(encoded) as connection:
        if encoding == "SQL_ASCII":
            with pytest.raises(JobConfigError, match="SET client_encoding TO 'UTF8'"):
                store.enqueue(QUEUE, {}, connection=connection)
        else:
            connection.execute("CREATE TABLE kept (n int)")
            with pytest.raises(PayloadError, match="Nothing was enqueued"):
                store.enqueue(QUEUE, {"a": "中"}, connection=connection)
            store.enqueue(QUEUE, {"ä": "ö"}, connection=connection)
            connection.commit()
            assert [job.payload for job in store.list()] == [{"ä": "ö"}]
