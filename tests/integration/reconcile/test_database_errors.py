"""A database that is away, broken or gone in the middle: only the package's own errors come out of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import IntegrityError

from conquiet.embedded import PostgresServer
from conquiet.errors import OutcomeUnknownError, StoreUnavailableError
from conquiet.local import PriorityDelayQueue
from conquiet.reconcile import PlatformFetcher, ReconciliationService, open_database
from conquiet.reconcile.desk import IntakeDesk

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
    with pytest.raises(OutcomeUnknownError, match="may have been committed"), sessions.begin() as session:
        session.execute(text("SELECT 1"))
    event.remove(engine, "commit", end)
    with sessions.begin() as session:  # the next one has a connection of its own
        assert session.scalar(text("SELECT 1")) == 1
    engine.dispose()


def test_what_is_wrong_with_values_stays_what_it_is(tmp_path: Path) -> None:
    sessions = open_database(f"sqlite:///{tmp_path / 'reports.db'}")
    with pytest.raises(IntegrityError), sessions.begin() as session:
        session.execute(text("INSERT INTO affiliate_reports DEFAULT VALUES"))
    sessions.kw["bind"].dispose()
