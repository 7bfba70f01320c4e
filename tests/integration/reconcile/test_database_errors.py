"""A database that is away, broken or lost in the middle: it raises only the package's own errors."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, sessionmaker

from conquiet.embedded import PostgresServer
from conquiet.errors import ReconcileConfigError, StoreOutcomeUnknownError, StoreUnavailableError
from conquiet.local import PriorityDelayQueue
from conquiet.reconcile import (
    PlatformFetcher,
    ReconciliationService,
    RetryScheduler,
    create_app,
    open_database,
    resume,
    run_reconciliation,
)
from conquiet.reconcile.intake.desk import IntakeDesk

REPORT = {
    "affiliate_id": "ann",
    "platform": "instagram",
    "post_id": "p1",
    "claimed_views": 1000,
    "claimed_clicks": 30,
    "claimed_conversions": 2,
}


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(
        StoreUnavailableError, match=r"^postgresql://app:\*\*\*@127\.0\.0\.1:1/reports: .*refused"
    ):
        open_database("postgresql://app:hunter2@127.0.0.1:1/reports")


@pytest.mark.parametrize(
    "start", [open_database, lambda dsn: ReconciliationService(dsn, PlatformFetcher({}))]
)
def test_a_file_that_is_no_database(tmp_path: Path, start: Any) -> None:
    file = tmp_path / "reports.db"
    file.write_text("a letter to a friend, and long enough to be no header of SQLite's " * 20)
    before = file.read_bytes()
    with pytest.raises(StoreUnavailableError, match=r"reports\.db: file is not a database"):
        start(f"sqlite:///{file}")
    assert file.read_bytes() == before


def test_a_server_that_goes_away_under_the_intake() -> None:
    with PostgresServer(fsync=False) as server:
        sessions = open_database(server.dsn)
        desk = IntakeDesk(sessions, PriorityDelayQueue())
        server.stop()
        with pytest.raises(StoreUnavailableError, match="Nothing was committed"):
            desk.submit(REPORT, "c", None)
        sessions.kw["bind"].dispose()


def test_a_connection_that_ends_at_the_commit_leaves_it_open(postgres_dsn: str) -> None:
    sessions = open_database(postgres_dsn)
    engine = sessions.kw["bind"]

    def end(connection: Any) -> None:
        pid = connection.connection.driver_connection.info.backend_pid
        with psycopg.connect(postgres_dsn, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])

    event.listen(engine, "commit", end)
    with (
        pytest.raises(StoreOutcomeUnknownError, match="may have been committed"),
        sessions.begin() as session,
    ):
        session.execute(text("SELECT 1"))
    event.remove(engine, "commit", end)
    with sessions.begin() as session:  # the next session has its own connection
        assert session.scalar(text("SELECT 1")) == 1
    engine.dispose()


def test_what_is_wrong_with_values_stays_what_it_is(tmp_path: Path) -> None:
    sessions = open_database(f"sqlite:///{tmp_path / 'reports.db'}")
    with pytest.raises(IntegrityError), sessions.begin() as session:
        session.execute(text("INSERT INTO affiliate_reports DEFAULT VALUES"))
    sessions.kw["bind"].dispose()


@pytest.fixture
def exhausted(tmp_path: Path) -> Iterator[sessionmaker[Session]]:
    """Sessions, all of whose connections are in use."""
    sessions = open_database(f"sqlite:///{tmp_path / 'reports.db'}", pool_size=1)
    pool: Any = sessions.kw["bind"].pool
    pool._timeout = 0.05  # instead of half a minute
    held = [sessions() for _ in range(3)]
    for session in held:
        session.execute(text("SELECT 1"))
    yield sessions
    for session in held:
        session.close()
    with sessions.begin() as session:  # once released, they can be used again
        assert session.scalar(text("SELECT 1")) == 1
    sessions.kw["bind"].dispose()


def test_that_no_connection_is_free_is_said(exhausted: sessionmaker[Session]) -> None:
    queue = PriorityDelayQueue()
    for use in (
        lambda: IntakeDesk(exhausted, queue).submit(REPORT),
        lambda: resume(exhausted),
        RetryScheduler(exhausted, queue).run_once,
        lambda: run_reconciliation(1, fetcher=PlatformFetcher({}), session_factory=exhausted),
    ):
        with pytest.raises(
            StoreUnavailableError, match=r"all 3 connections .* in use, .* 0\.05 s.*pool_size"
        ):
            use()


def test_that_no_connection_is_free_is_a_503(exhausted: sessionmaker[Session]) -> None:
    async def ask() -> list[httpx.Response]:
        transport = httpx.ASGITransport(create_app(exhausted, PriorityDelayQueue()))
        async with httpx.AsyncClient(transport=transport, base_url="http://intake") as client:
            posted = await client.post("/reports", json=REPORT)
            return [posted, await client.get("/reports/1"), await client.get("/health")]

    for answer in asyncio.run(ask()):
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "storage_unavailable")
        assert int(answer.headers["Retry-After"]) > 0


@pytest.mark.parametrize("size", [0, -5, "x", None, 1.5, True])
def test_a_pool_of_no_size_is_refused(tmp_path: Path, size: Any) -> None:
    with pytest.raises(ReconcileConfigError, match="pool_size must be a whole number of at least 1"):
        open_database(f"sqlite:///{tmp_path / 'reports.db'}", pool_size=size)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("dsn", [None, 5, b"sqlite:///x.db", ""])
def test_what_is_no_dsn_is_refused(dsn: Any) -> None:
    with pytest.raises(ReconcileConfigError, match="use sqlite:///reports.db or postgresql://"):
        open_database(dsn)
