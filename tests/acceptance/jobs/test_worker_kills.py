"""Job workers, and their server, killed -9 while they work: no job is lost, and each has its effect once."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import psycopg
import pytest

from conquiet.embedded import PostgresServer
from conquiet.verify.recording.jobs import POINTS
from tests.acceptance.jobs.kill_campaign import AT_RANDOM, SLOTS, KillCampaign, Outcome
from tests.acceptance.jobs.worker import RETRY
from tests.campaign import campaign_size
from tests.faults.figures import Record, percentiles
from tests.faults.recovery import double_valid_leases, refused, taken_over_after

clauses = pytest.mark.clause("J-04", "J-10", "J-12", "J-13", "J-22", "J-26", "J-30")


@pytest.mark.campaign
@clauses
@pytest.mark.clause("J-21", "J-23", "J-25")
def test_on_postgresql_which_is_killed_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], record_figure: Record
) -> None:
    kills, server_kills = campaign_size(1_000), campaign_size(20)
    with PostgresServer() as server:  # fsync is on

        def execute(statement: str) -> list[tuple[Any, ...]]:
            with psycopg.connect(server.dsn, autocommit=True) as connection:
                cursor = connection.execute(statement)
                return cursor.fetchall() if cursor.description else []

        campaign = KillCampaign(
            server.dsn,
            tmp_path,
            jobs=campaign_size(40_000),
            kills=kills,
            server=server,
            server_kills=server_kills,
            pauses=campaign_size(20),
        )
        outcome = campaign.run(
            lambda: execute("CREATE TABLE effects (n INTEGER)"),
            lambda: [n for (n,) in execute("SELECT n FROM effects")],
        )
    note("PostgreSQL", outcome, tmp_path, record_figure)
    judge(outcome, kills, capsys)
    assert outcome.server_kills == server_kills


@pytest.mark.campaign
@clauses
def test_on_sqlite(tmp_path: Path, capsys: pytest.CaptureFixture[str], record_figure: Record) -> None:
    kills, file = campaign_size(500), tmp_path / "jobs.db"

    def execute(statement: str) -> list[tuple[Any, ...]]:
        connection = sqlite3.connect(file, isolation_level=None, timeout=30)
        try:
            return connection.execute(statement).fetchall()
        finally:
            connection.close()

    campaign = KillCampaign(
        f"sqlite:///{file}", tmp_path, jobs=campaign_size(16_000), kills=kills, pauses=campaign_size(5)
    )
    outcome = campaign.run(
        lambda: execute("CREATE TABLE effects (n INTEGER)"),
        lambda: [n for (n,) in execute("SELECT n FROM effects")],
    )
    note("SQLite", outcome, tmp_path, record_figure)
    judge(outcome, kills, capsys)
    assert execute("PRAGMA integrity_check") == [("ok",)]


def note(store: str, outcome: Outcome, folder: Path, record_figure: Record) -> None:
    record_figure(
        f"{store}: job workers killed -9, at every point and at random",
        n=outcome.kills,
        lost=len(outcome.unfinished) + outcome.lost_effects,
        doubled=outcome.doubled_effects + outcome.doubled_acks,
        killed_at=dict(outcome.by_fate),
        server_kills=outcome.server_kills,
        pauses=outcome.pauses,
        jobs=len(outcome.jobs),
        double_valid_leases=double_valid_leases(outcome.verdict),
        stale_holders_refused=refused(folder / "history"),
        taken_over_after_the_lease=percentiles(taken_over_after(folder / "history")),
    )


def judge(outcome: Outcome, kills: int, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\n{outcome}")
    outcome.verdict.raise_if_broken()
    assert outcome.unfinished == []
    assert (outcome.lost_effects, outcome.doubled_effects, outcome.doubled_acks) == (0, 0, 0)
    assert outcome.most_failures == 1 + RETRY.max_retries
    assert outcome.kills == kills
    assert outcome.pauses > 0
    if kills >= 100:  # a few deaths need not cover every kind
        assert set(outcome.by_fate) == {*POINTS, AT_RANDOM}
        assert set(outcome.by_isolation) == {*SLOTS}


def test_the_campaign_notices_a_worker_that_loses_jobs(tmp_path: Path) -> None:
    """That worker acknowledges before it handles."""
    dsn = f"sqlite:///{tmp_path / 'jobs.db'}"
    campaign = KillCampaign(dsn, tmp_path, jobs=200, kills=4, points=("handling",), executor="AcksFirst")
    outcome = campaign.run(lambda: None, list)
    assert "unhandled-ack" in outcome.verdict.kinds
    assert "lost" in outcome.verdict.kinds
