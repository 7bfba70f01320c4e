"""The errors raised when a store cannot be reached, is locked, or is cut off during an operation."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest

from conquiet.embedded import PostgresServer
from conquiet.jobs import (
    JobConfigError,
    JobState,
    NewJob,
    StoreClosedError,
    StoreOutcomeUnknownError,
    StoreUnavailableError,
)
from tests.conformance.sources import Source, SqliteSource, waiting_backend
from tests.integration.queue.variants import LoopThread

QUEUE = "orders"


@pytest.fixture(params=["sync", "async"])
def loop(request: pytest.FixtureRequest) -> LoopThread | None:
    return request.getfixturevalue("loop_thread") if request.param == "async" else None


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A server that the tests stop and kill."""
    with PostgresServer() as private:
        private.create_database("jobs")
        yield private


@pytest.fixture
def jobs(server: PostgresServer, loop: LoopThread | None) -> Iterator[Any]:
    """An empty store on that server."""
    server.start()
    source = Source(loop)
    store = source.open_dsn(dsn_of(server))
    with psycopg.connect(dsn_of(server), autocommit=True) as admin:
        admin.execute("DELETE FROM conquiet_jobs")
    yield store
    server.start()
    source.close()


def dsn_of(server: PostgresServer) -> str:
    return server.dsn.removesuffix("/postgres") + "/jobs"


def password(server: PostgresServer) -> str:
    return server.dsn.split(":")[2].split("@")[0]


def failure(work: Callable[[], object]) -> Exception:
    """Return what `work` raises."""
    try:
        work()
    except Exception as error:
        return error
    raise AssertionError("it worked")


def operations(store: Any, held: Any) -> list[Callable[[], object]]:
    """Every operation of a store."""
    return [
        lambda: store.enqueue(QUEUE, {}),
        lambda: store.enqueue_many(QUEUE, [{}]),
        lambda: store.claim(QUEUE),
        lambda: store.ack(held),
        lambda: store.nack(held),
        lambda: store.release(held),
        lambda: store.heartbeat(held),
        lambda: store.ack_many([held]),
        lambda: store.get(held.id),
        lambda: store.list(),
        lambda: store.stats(),
        lambda: store.retry(held.id),
        lambda: store.discard(held.id),
        lambda: store.prune(1.0),
        lambda: store.migrate(),
    ]


@pytest.mark.clause("J-21")
def test_a_server_that_is_down_is_unavailable_and_nothing_else(server: PostgresServer, jobs: Any) -> None:
    jobs.enqueue(QUEUE, {})
    (held,) = jobs.claim(QUEUE, lease_ttl=600.0)
    server.stop()
    first = failure(jobs.list)  # on the old, broken connection; reading changes nothing
    assert type(first) is StoreUnavailableError
    for work in operations(jobs, held):
        error = failure(work)
        assert type(error) is StoreUnavailableError
        assert "cannot be reached" in str(error)
        assert str(server.port) in str(error)
        assert password(server) not in f"{error!r} {error.__cause__!r}"
    server.start()
    assert jobs.list() == [held]
    jobs.ack(held)  # the same store reconnects by itself


def test_a_connection_that_broke_while_idle_is_noticed_before_anything_is_sent(
    server: PostgresServer, jobs: Any
) -> None:
    jobs.enqueue(QUEUE, {})
    (held,) = jobs.claim(QUEUE, lease_ttl=600.0)
    server.kill()
    error = failure(lambda: jobs.ack(held))
    assert type(error) is StoreUnavailableError  # not an unknown outcome
    assert "cannot be reached" in str(error)
    assert password(server) not in str(error)
    server.start()
    assert jobs.get(held.id) == held
    jobs.ack(held)


@pytest.mark.parametrize("how", ["terminate", "kill"])
def test_an_ack_that_is_cut_off_has_an_unknown_outcome(server: PostgresServer, jobs: Any, how: str) -> None:
    jobs.enqueue(QUEUE, {})
    (held,) = jobs.claim(QUEUE, lease_ttl=600.0)
    error = cut_off(
        *(server, how, "SELECT 1 FROM conquiet_jobs FOR UPDATE"),
        lambda: jobs.ack(held),
    )
    assert type(error) is StoreOutcomeUnknownError
    assert "ack on postgresql://" in str(error)
    assert "read the job to find out" in str(error)
    assert password(server) not in str(error)
    assert jobs.get(held.id) == held  # here the ack did not happen
    jobs.ack(held)
    assert jobs.get(held.id).state is JobState.SUCCEEDED


def test_so_has_an_enqueue(server: PostgresServer, jobs: Any) -> None:
    error = cut_off(
        server,
        "terminate",
        "INSERT INTO conquiet_jobs (id, queue, payload, priority, state, max_retries, enqueued_at)"
        " VALUES ('a', 'orders', '{}', 1, 'Ready', 1, now())",
        lambda: jobs.enqueue(QUEUE, {}, id="a"),
    )
    assert type(error) is StoreOutcomeUnknownError
    assert error.ids == ("a",)  # which ids to enqueue again, with on_duplicate="skip"
    assert jobs.get("a") is None


def test_reading_that_is_cut_off_leaves_nothing_unknown(server: PostgresServer, jobs: Any) -> None:
    error = cut_off(server, "terminate", "LOCK TABLE conquiet_jobs", lambda: jobs.get("a"))
    assert type(error) is StoreUnavailableError
    assert jobs.get("a") is None


def cut_off(server: PostgresServer, how: str, obstacle: str, work: Callable[[], object]) -> Exception:
    """Block `work` with `obstacle` and break its connection while it waits. Return what it raised."""
    with (
        psycopg.connect(dsn_of(server), autocommit=True) as admin,
        psycopg.connect(dsn_of(server)) as other,
        ThreadPoolExecutor(1) as beside,
    ):
        other.execute(obstacle)
        outcome: Future[Exception] = beside.submit(failure, work)
        pid = waiting_backend(admin)
        if how == "terminate":
            admin.execute("SELECT pg_terminate_backend(%s)", (pid,))
        else:
            server.kill()
        error = outcome.result(60)
        if how == "terminate":
            other.rollback()
        else:
            other.close()
            server.start()
    return error


def test_a_statement_that_the_server_gives_up_changes_nothing(
    server: PostgresServer, jobs: Any, loop: LoopThread | None
) -> None:
    impatient = Source(loop)
    store = impatient.open_dsn(dsn_of(server) + "?options=" + quote("-c lock_timeout=50ms"))
    store.enqueue(QUEUE, {})
    (held,) = store.claim(QUEUE, lease_ttl=600.0)
    with psycopg.connect(dsn_of(server)) as other:
        other.execute("SELECT 1 FROM conquiet_jobs FOR UPDATE")
        error = failure(lambda: store.ack(held))
        other.rollback()
    assert type(error) is StoreUnavailableError
    assert str(error).endswith("Nothing was changed")
    store.ack(held)
    impatient.close()


@pytest.mark.parametrize("problem", ["nobody listens", "wrong password", "no database", "bad port"])
def test_opening_says_what_is_wrong_without_the_password(
    server: PostgresServer, loop: LoopThread | None, problem: str
) -> None:
    server.start()
    dsn, told = {
        "nobody listens": ("postgresql://app:hunter2@127.0.0.1:1/jobs", "127.0.0.1"),
        "wrong password": (server.dsn.replace(password(server), "hunter2"), "password authentication failed"),
        "no database": (server.dsn.removesuffix("/postgres") + "/nowhere", "nowhere"),
        "bad port": ("postgresql://app:hunter2@127.0.0.1:many/jobs", "many"),
    }[problem]
    error = failure(lambda: Source(loop).open_dsn(dsn))
    # A port that is not a number is not an outage: a worker must not wait for it to end.
    assert type(error) is (JobConfigError if problem == "bad port" else StoreUnavailableError)
    assert told in str(error)
    assert "hunter2" not in f"{error!r} {error.__cause__!r}"
    assert password(server) not in f"{error!r} {error.__cause__!r}"


def test_a_closed_store_says_that_it_is_closed(durable: Any) -> None:
    store = durable.open()
    store.enqueue(QUEUE, {})
    (held,) = store.claim(QUEUE)
    store.close()
    for work in operations(store, held):
        error = failure(work)
        assert type(error) is StoreClosedError  # not an outage: a worker must not wait for it to end
        assert "is closed" in str(error)
    store.close()


def test_a_locked_sqlite_file_is_unavailable_for_now(tmp_path: Path, loop: LoopThread | None) -> None:
    source = SqliteSource(tmp_path, loop)
    store = source.open()
    store.enqueue(QUEUE, {})
    (held,) = store.claim(QUEUE, lease_ttl=600.0)
    store.operations.backend._connection.execute("PRAGMA busy_timeout = 20")  # the default is 10 seconds
    changes = operations(store, held)[:8]
    with source.transaction() as connection:
        connection.execute("BEGIN IMMEDIATE")
        for work in changes:
            error = failure(work)
            assert type(error) is StoreUnavailableError
            assert "locked" in str(error)
            assert str(error).endswith("Nothing was changed")
        assert store.list() == [held]  # readers do not wait
    assert store.list() == [held]
    store.ack(held)
    source.close()


def test_a_full_disk_changes_nothing(tmp_path: Path, loop: LoopThread | None) -> None:
    source = SqliteSource(tmp_path, loop)
    store = source.open()
    store.enqueue(QUEUE, {})
    before = store.list()
    sqlite: sqlite3.Connection = store.operations.backend._connection
    (pages,) = sqlite.execute("PRAGMA page_count").fetchone()
    sqlite.execute(f"PRAGMA max_page_count = {pages}")
    error = failure(lambda: store.enqueue_many(QUEUE, [NewJob({"x": "y" * 10_000}) for _ in range(10)]))
    assert type(error) is StoreUnavailableError
    assert "full" in str(error)
    assert store.list() == before
    sqlite.execute(f"PRAGMA max_page_count = {pages * 1000}")
    assert len(store.enqueue_many(QUEUE, [NewJob({"x": "y" * 10_000}) for _ in range(10)])) == 10
    source.close()


@pytest.mark.parametrize("problem", ["not a database", "no folder", "a folder"])
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, loop: LoopThread | None, problem: str) -> None:
    path = tmp_path / "nowhere" / "jobs.db" if problem == "no folder" else tmp_path / "jobs.db"
    if problem == "not a database":
        path.write_bytes(b"something else entirely" * 100)
    if problem == "a folder":
        path.mkdir()
    error = failure(lambda: Source(loop).open_dsn(f"sqlite:///{path}"))
    assert type(error) is StoreUnavailableError
    assert str(path) in str(error)
