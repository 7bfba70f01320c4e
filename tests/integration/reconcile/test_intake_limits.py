"""What the HTTP intake does not accept: slow bodies, keys used twice, backdated reports."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import REGISTRY
from sqlalchemy.orm import Session, sessionmaker

from conquiet.local import PriorityDelayQueue
from conquiet.reconcile import DEFAULT_RULES, Metrics, create_app, run_reconciliation
from conquiet.reconcile.models import AffiliateReport
from conquiet.reconcile.scheduler import schedule_attempt
from conquiet.testing import ManualClock
from tests.integration.reconcile.reports import moment, platform, rows, store
from tests.integration.reconcile.test_intake import Client, Intake

Sessions = sessionmaker[Session]


@pytest.fixture
def intake(sessions: Sessions) -> Intake:
    return Intake(sessions)


def test_a_body_that_does_not_end_is_answered_in_time(sessions: Sessions) -> None:
    app = create_app(sessions, PriorityDelayQueue(), body_seconds=0.05)

    async def ask() -> list[dict[str, Any]]:
        sent: list[dict[str, Any]] = []
        parts = [{"type": "http.request", "body": b"{", "more_body": True}]

        async def receive() -> dict[str, Any]:
            if parts:
                return parts.pop()
            await asyncio.Event().wait()
            raise AssertionError

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": "/reports", "headers": [], "query_string": b""}
        await asyncio.wait_for(app(scope, receive, send), 60)
        return sent

    start, body = asyncio.run(ask())
    assert start["status"] == 408
    assert (b"connection", b"close") in start["headers"]
    assert "within 0.05 s" in json.loads(body["body"])["error"]["message"]
    assert rows(sessions, AffiliateReport) == []


def test_a_key_is_for_one_time_of_submission(intake: Intake, sessions: Sessions) -> None:
    def status(key: str, **time: str) -> int:
        return intake.client.post(headers={"Idempotency-Key": key}, **time).status_code

    def ago(seconds: float) -> str:
        return moment(intake.clock, -seconds).isoformat()

    first, other = ago(60), ago(61)
    assert [status("without"), status("with", submitted_at=first)] == [202, 202]
    intake.clock.advance(5)
    assert status("without") == 200
    assert status("without", submitted_at=other) == 409
    assert status("with", submitted_at=first) == 200
    assert status("with", submitted_at=other) == 409
    assert status("with") == 409
    assert len(rows(sessions, AffiliateReport)) == 2


def test_a_report_cannot_be_backdated(intake: Intake, sessions: Sessions) -> None:
    hour_ago = moment(intake.clock, -3_600).isoformat()
    early = intake.client.post(submitted_at=moment(intake.clock, -3_601).isoformat())
    assert early.status_code == 422
    assert early.json()["error"]["field"] == "submitted_at"
    assert "more than 3600 s ago" in early.json()["error"]["message"]
    key = {"Idempotency-Key": "1"}
    assert intake.client.post(headers=key, submitted_at=hour_ago).status_code == 202
    intake.clock.advance(86_400)
    assert intake.client.post(headers=key, submitted_at=hour_ago).status_code == 200  # sent again
    assert intake.client.post(submitted_at=hour_ago).status_code == 422
    assert len(rows(sessions, AffiliateReport)) == 1
    backfill = replace(DEFAULT_RULES, intake=replace(DEFAULT_RULES.intake, max_age_seconds=None))
    client = Client(create_app(sessions, PriorityDelayQueue(), rules=backfill, clock=intake.clock))
    assert client.post(submitted_at=hour_ago).status_code == 202


def test_what_waits_in_the_database_is_seen(intake: Intake, sessions: Sessions) -> None:
    assert intake.client.get("/health").json()["database"] == {"attempts": 0, "overdue_seconds": 0.0}
    first, second = (intake.client.post(post_id=name).json()["report_id"] for name in ("p1", "p2"))
    with sessions.begin() as session:
        schedule_attempt(session, first, 1, moment(intake.clock, 10))
        schedule_attempt(session, second, 1, moment(intake.clock, 60))
    assert intake.client.get("/health").json()["database"] == {"attempts": 2, "overdue_seconds": 0.0}
    intake.clock.advance(40)
    assert intake.client.get("/health").json()["database"] == {"attempts": 2, "overdue_seconds": 30.0}
    assert REGISTRY.get_sample_value("conquiet_attempts_waiting") == 2.0
    assert REGISTRY.get_sample_value("conquiet_attempts_overdue_seconds") == 30.0


def test_alerts_are_counted(sessions: Sessions) -> None:
    labels = {"kind": "fraud", "severity": "critical"}
    before = REGISTRY.get_sample_value("conquiet_alerts_total", labels) or 0.0
    clock = ManualClock()
    report_id = store(sessions, clock, (10_000, 30, 2))
    fetcher, _ = platform({"p1": Metrics(1000, 30, 2)}, clock)
    run_reconciliation(report_id, fetcher=fetcher, session_factory=sessions, clock=clock)
    assert REGISTRY.get_sample_value("conquiet_alerts_total", labels) == before + 1
