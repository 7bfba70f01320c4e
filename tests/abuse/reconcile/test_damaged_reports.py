"""Reports that somebody damaged in the database: each ends by itself, and is shown as an error."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from conquiet.errors import DamagedRowError
from conquiet.local import PriorityDelayQueue
from conquiet.reconcile import (
    Metrics,
    ReconciliationTask,
    RetryScheduler,
    create_app,
    open_database,
    resume,
    run_reconciliation,
)
from conquiet.reconcile.models import Alert
from conquiet.task import Transaction, TransactionException
from conquiet.testing import ManualClock
from tests.integration.reconcile.reports import counts, moment, platform, rows, store

Sessions = sessionmaker[Session]
DAMAGE = ["claimed_views = 'many'", "claimed_clicks = x'00ff'", "submitted_at = 'yesterday'"]


@pytest.fixture
def sessions(tmp_path: Path) -> Iterator[Sessions]:
    opened = open_database(f"sqlite:///{tmp_path}/reports.db")
    yield opened
    opened.kw["bind"].dispose()


def damaged(sessions: Sessions, clock: ManualClock, change: str) -> int:
    report_id = store(sessions, clock)
    with sessions.begin() as session:
        session.execute(text(f"UPDATE affiliate_reports SET {change}"))
    return report_id


@pytest.mark.parametrize("change", DAMAGE)
@pytest.mark.parametrize("by", ["worker", "engine"])
def test_it_ends_with_an_alert(
    sessions: Sessions, change: str, by: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    report_id = damaged(sessions, clock, change)
    assert resume(sessions, moment(clock)) == 1
    fetcher, adapter = platform({"p1": Metrics(1000, 30, 2)}, clock)
    for _ in range(2):  # a second delivery changes nothing
        if by == "worker":
            with pytest.raises(DamagedRowError, match=f"report {report_id} cannot be"):
                run_reconciliation(report_id, fetcher=fetcher, session_factory=sessions, clock=clock)
        else:
            task = ReconciliationTask(fetcher, sessions, clock=clock)
            with pytest.raises(TransactionException, match=f"report {report_id} cannot be"):
                task.process_transaction(Transaction("1", {"affiliate_report_id": report_id}))
    assert adapter.calls == 0
    assert [(one.kind, one.severity, one.status) for one in rows(sessions, Alert)] == [
        ("data_quality", "high", "DAMAGED")
    ]
    assert counts(sessions)["scheduled_attempts"] == 0
    assert [one.levelname for one in caplog.records if getattr(one, "event", "") == "report_damaged"] == [
        "ERROR"
    ]
    clock.advance(7_200)
    assert resume(sessions, moment(clock)) == 0
    assert RetryScheduler(sessions, PriorityDelayQueue(clock=clock), clock=clock).run_once() == 0


@pytest.mark.parametrize("change", DAMAGE)
def test_it_is_shown_as_json(sessions: Sessions, change: str) -> None:
    report_id = damaged(sessions, ManualClock(), change)
    app = create_app(sessions, PriorityDelayQueue())

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://intake") as client:
            return await client.get(f"/reports/{report_id}")

    answer = asyncio.run(ask())
    if "many" in change:
        assert answer.json()["claimed_views"] == "many"
    else:
        assert answer.status_code == 500
        assert answer.json()["error"]["code"] == "damaged_report"
