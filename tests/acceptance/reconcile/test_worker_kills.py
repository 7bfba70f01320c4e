"""Workers killed during thousands of reconciliations on leased jobs: nothing is lost, nothing counts twice."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import func, insert, select
from sqlalchemy.orm import Session, sessionmaker

from conquiet.clock import Parker, utc
from conquiet.jobs import open_store
from conquiet.reconcile import (
    JobStoreQueue,
    ReconciliationJob,
    RetryScheduler,
    open_database,
    trust_scores,
)
from conquiet.reconcile.models import AffiliateReport, ReportAttempt, TrustEntry
from conquiet.testing import ManualClock
from tests.acceptance.reconcile import worker
from tests.campaign import campaign_size
from tests.chance import new_chance
from tests.faults.figures import Record
from tests.unit.reconcile import oracle

Sessions = sessionmaker[Session]
A_DAY = 86_400.0
PATIENCE = 100.0  # seconds without any progress


class Fleet:
    """Two worker processes, one of which is killed now and then."""

    def __init__(self, *arguments: str) -> None:
        self._command = [sys.executable, worker.__file__, *arguments]
        self._random = new_chance()
        self._members = [self._start(), self._start()]
        self.killed = 0

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command)

    def kill_one(self) -> None:
        index = self._random.randrange(len(self._members))
        self._members[index].kill()
        self._members[index].wait()
        self.killed += 1
        self._members[index] = self._start()

    def check(self) -> None:
        assert [member.poll() for member in self._members] == [None, None], "a worker ended by itself"

    def end(self) -> None:
        for member in self._members:
            member.kill()
            member.wait()


@contextmanager
def fleet(*arguments: str) -> Iterator[Fleet]:
    running = Fleet(*arguments)
    try:
        yield running
    finally:
        running.end()


@pytest.mark.clause("W-24")
@pytest.mark.campaign
@pytest.mark.timeout(300)
@pytest.mark.parametrize("backend", ["sqlite", "postgresql"])
def test_every_report_is_reconciled_and_every_score_as_undisturbed(
    backend: str, request: pytest.FixtureRequest, tmp_path: Path, record_figure: Record
) -> None:
    if backend == "sqlite":
        reports_dsn, jobs_dsn = f"sqlite:///{tmp_path}/reports.db", f"sqlite:///{tmp_path}/jobs.db"
    else:
        reports_dsn = jobs_dsn = request.getfixturevalue("postgres_dsn")
    total = campaign_size(2_000)
    kills = 3 if total < 2_000 else 40
    clock = ManualClock()
    sessions = open_database(reports_dsn)
    with open_store(jobs_dsn) as jobs:
        queue = JobStoreQueue(jobs, worker.QUEUE)
        expected, attempts = store_all(sessions, clock, total)
        for report_id in range(1, total + 1):
            queue.enqueue(ReconciliationJob(report_id))
        scheduler = RetryScheduler(sessions, queue, clock=clock)
        with fleet(reports_dsn, jobs_dsn) as workers:
            seen, idle = 0, 0.0
            while not finished(sessions):
                workers.check()
                scheduler.run_once(utc(clock.time() + A_DAY))  # by tomorrow every retry is due
                done = count(sessions, ReportAttempt)
                if workers.killed < kills and done >= (workers.killed + 1) * attempts // (kills + 1):
                    workers.kill_one()
                Parker().park(0.02)
                idle, seen = (0.0, done) if done > seen else (idle + 0.02, seen)
                assert idle < PATIENCE, f"{done} of {attempts} attempts, and no more"
            assert workers.killed == kills
    made = count(sessions, ReportAttempt)
    record_figure(
        f"{backend}: reconciling workers killed -9",
        n=kills,
        lost=max(0, attempts - made),
        doubled=max(0, made - attempts),
        reports=total,
    )
    assert made == attempts
    assert count(sessions, TrustEntry) == count(
        sessions, AffiliateReport, AffiliateReport.status.not_like("%PLATFORM_DATA")
    )
    with sessions() as session:
        assert trust_scores(session) == {
            name: max(0, min(100, 50 + change)) / 100 for name, change in expected.items()
        }
    sessions.kw["bind"].dispose()


def store_all(sessions: Sessions, clock: ManualClock, total: int) -> tuple[Counter[str], int]:
    """Store reports 1 to `total`. Returns the expected changes by affiliate and the expected number of attempts."""
    draws, platform = random.Random(9), worker.adapter()
    changes: Counter[str] = Counter()
    attempts = 0
    now = utc(clock.time())
    rows = []
    for report_id in range(1, total + 1):
        post, affiliate = f"post {report_id}", f"affiliate {report_id % 23}"
        shown = platform.fetch(post).metrics
        for share in draws.sample([0.0, 0.07, 0.15, 0.4, -0.3], 5):
            claimed = tuple(int((value or 0) * (1 + share)) for value in platform.truth(post))
            opinion, *others = oracle.opinions(claimed, shown, now - now)  # type: ignore[arg-type]
            if not others:  # not on a threshold; an honest claim never is
                break
        attempts += {"MISSING_PLATFORM_DATA": 5, "INCOMPLETE_PLATFORM_DATA": 2}.get(opinion.status, 1)
        if opinion.delta is not None:
            changes[affiliate] += opinion.delta
        rows.append(
            {
                "id": report_id,
                "affiliate_id": affiliate,
                "platform": "sim",
                "post_id": post,
                **dict(zip(("claimed_views", "claimed_clicks", "claimed_conversions"), claimed, strict=True)),
                "submitted_at": now,
                "received_at": now,
                "priority": "normal",
                "attempts": 0,
            }
        )
    with sessions() as session:
        session.execute(insert(AffiliateReport), rows)
        session.commit()
    return changes, attempts


def finished(sessions: Sessions) -> bool:
    return count(sessions, AffiliateReport, AffiliateReport.finished_at.is_(None)) == 0


def count(sessions: Sessions, model: type, *conditions: object) -> int:
    with sessions() as session:
        return session.scalar(select(func.count()).select_from(model).where(*conditions)) or 0  # type: ignore[arg-type]
