"""The HTTP intake, called as an ASGI app."""

from __future__ import annotations

import asyncio
import json
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx
import pytest
from sqlalchemy import event
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session, sessionmaker

from conquiet.errors import QueueFullError, ReconcileConfigError, StoreUnavailableError
from conquiet.local import PriorityDelayQueue, QueueItem, QueueSettings
from conquiet.reconcile import (
    DEFAULT_RULES,
    Metrics,
    Reconciler,
    ReconciliationJob,
    RetryScheduler,
    RiskRules,
    create_app,
    resume,
)
from conquiet.reconcile.models import AffiliateReport
from conquiet.testing import ManualClock
from tests.integration.reconcile.reports import moment, platform, report, rows

Sessions = sessionmaker[Session]
GOOD = {
    "affiliate_id": "ann",
    "platform": "instagram",
    "post_id": "p1",
    "claimed_views": 1000,
    "claimed_clicks": 30,
    "claimed_conversions": 2,
}


class Client:
    """Synchronous calls of the app, each in its own event loop."""

    def __init__(self, app: Any) -> None:
        self.app = app

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(app=self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://intake") as client:
                return await client.request(method, path, **options)

        return asyncio.run(ask())

    def post(self, headers: dict[str, str] | None = None, **changes: Any) -> httpx.Response:
        return self.request("POST", "/reports", json={**GOOD, **changes}, headers=headers)

    def get(self, path: str) -> httpx.Response:
        return self.request("GET", path)


class Intake:
    def __init__(self, sessions: Sessions, **settings: Any) -> None:
        self.clock = ManualClock()
        self.queue = PriorityDelayQueue(QueueSettings(**settings), clock=self.clock)
        self.client = Client(create_app(sessions, self.queue, platforms=["instagram"], clock=self.clock))


@pytest.fixture
def intake(sessions: Sessions) -> Intake:
    return Intake(sessions)


def test_a_report_is_stored_enqueued_and_can_be_looked_up(intake: Intake, sessions: Sessions) -> None:
    answer = intake.client.post(headers={"X-Correlation-ID": "request-7"})
    assert answer.status_code == 202
    report_id = answer.json()["report_id"]
    assert answer.json() == {"report_id": report_id, "priority": "normal", "correlation_id": "request-7"}
    assert answer.headers["Location"] == f"/reports/{report_id}"
    item = intake.queue.dequeue(block=False)
    assert item is not None
    assert item.job == ReconciliationJob(report_id, "normal", moment(intake.clock), "request-7")
    shown = intake.client.get(f"/reports/{report_id}").json()
    assert shown | GOOD == shown
    assert (shown["status"], shown["attempts"], shown["alerts"]) == (None, [], [])
    assert shown["submitted_at"] == moment(intake.clock).isoformat()

    fetcher, _ = platform({"p1": Metrics(100, 30, 2)}, intake.clock)
    Reconciler(fetcher, sessions, clock=intake.clock)(item.job)
    shown = intake.client.get(f"/reports/{report_id}").json()
    assert (shown["status"], shown["level"]) == ("AFFILIATE_OVERCLAIMED", "CRITICAL")
    assert [attempt["observed_views"] for attempt in shown["attempts"]] == [100]
    assert [(alert["kind"], alert["severity"]) for alert in shown["alerts"]] == [("fraud", "critical")]


@pytest.mark.clause("W-26")
def test_claims_that_look_invented_are_enqueued_first(intake: Intake, sessions: Sessions) -> None:
    usual = intake.client.post().json()
    suspicious = intake.client.post(claimed_clicks=400).json()
    assert (usual["priority"], suspicious["priority"]) == ("normal", "high")
    items: list[QueueItem | None] = [intake.queue.dequeue(block=False) for _ in range(2)]
    assert [item.job.affiliate_report_id for item in items if item] == [
        suspicious["report_id"],
        usual["report_id"],
    ]
    assert [item.priority_label for item in items if item] == ["high", "normal"]
    assert report(sessions, suspicious["report_id"]).priority == "high"  # its retries go first, too


@pytest.mark.clause("W-25")
def test_a_full_queue_is_told_with_429_and_stores_nothing(sessions: Sessions) -> None:
    intake = Intake(sessions, max_in_memory=3, warn_depth=3)
    assert [intake.client.post().status_code for _ in range(3)] == [202] * 3
    refused = intake.client.post()
    assert refused.status_code == 429
    assert int(refused.headers["Retry-After"]) >= 1
    assert refused.json()["error"] == {"code": "queue_full", "message": "3 reports are waiting already"}
    assert len(rows(sessions, AffiliateReport)) == 3
    intake.queue.dequeue()
    assert intake.client.post().status_code == 202


@pytest.mark.clause("W-25")
def test_an_affiliate_over_its_rate_is_told_with_429(intake: Intake, sessions: Sessions) -> None:
    answers = [intake.client.post() for _ in range(22)]
    assert [answer.status_code for answer in answers] == [202] * 20 + [429] * 2
    assert answers[-1].headers["Retry-After"] == "1"
    assert answers[-1].json()["error"] == {
        "code": "rate_limited",
        "message": "an affiliate may submit 60 reports a minute, in bursts of 20",
    }
    assert intake.client.post(affiliate_id="bob").status_code == 202
    intake.clock.advance(1.0)
    assert [intake.client.post().status_code for _ in range(2)] == [202, 429]
    assert len(rows(sessions, AffiliateReport)) == 22


@pytest.mark.clause("W-25")
def test_white_space_makes_no_second_affiliate(intake: Intake, sessions: Sessions) -> None:
    names = ("fast", "fast ", " fast", "fast\t")
    answers = [intake.client.post(affiliate_id=names[number % 4]).status_code for number in range(24)]
    assert answers == [202] * 20 + [429] * 4
    assert {one.affiliate_id for one in rows(sessions, AffiliateReport)} == {"fast"}


@pytest.mark.parametrize("path", ["9" * 5_000, "0" * 5_000, "9" * 20, str(2**63), "²", "-1", "1e3", "%00"])
def test_an_id_that_cannot_be_one_is_not_found(intake: Intake, path: str) -> None:
    answer = intake.client.get(f"/reports/{path}")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "http_404"
    assert len(answer.text) < 200


def test_a_client_that_leaves_mid_body_is_no_error(
    intake: Intake, sessions: Sessions, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    parts = iter(
        [
            {"type": "http.request", "body": b'{"affiliate_id": ', "more_body": True},
            {"type": "http.disconnect"},
        ]
    )
    sent: list[Any] = []

    async def receive() -> Any:
        return next(parts)

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"x-correlation-id", b"request-9")]
    scope = {"type": "http", "method": "POST", "path": "/reports", "headers": headers, "query_string": b""}
    asyncio.run(intake.client.app(scope, receive, send))
    (record,) = [one for one in caplog.records if one.name.startswith("conquiet")]
    assert (record.levelname, record.event, record.correlation_id) == ("INFO", "client_left", "request-9")  # type: ignore[attr-defined]
    assert rows(sessions, AffiliateReport) == []


@pytest.mark.clause("W-25")
def test_bad_input_and_a_full_queue_cost_no_rate(sessions: Sessions) -> None:
    intake = Intake(sessions, max_in_memory=1, warn_depth=1)
    assert intake.client.post().status_code == 202
    assert {intake.client.post(claimed_views=-1).status_code for _ in range(30)} == {422}
    assert {intake.client.post().json()["error"]["code"] for _ in range(30)} == {"queue_full"}
    intake.queue.purge()
    assert intake.client.post().status_code == 202


@pytest.mark.clause("W-25")
@pytest.mark.parametrize(
    ("changes", "field", "reason"),
    [
        ({"claimed_views": None}, "claimed_views", "claimed_views is missing"),
        ({"claimed_views": 2**63}, "claimed_views", "from 0 to 9223372036854775807"),
        ({"claimed_views": 10.5}, "claimed_views", "whole number"),
        ({"submitted_at": "2999-01-01T00:00:00Z"}, "submitted_at", "in the future"),
        ({"submitted_at": "2023-01-01T00:00:00"}, "submitted_at", "needs a zone"),
        ({"platform": "conquiet.reconcile:SimulatedAdapter"}, "platform", "known platforms are: instagram"),
        ({"affiliate_id": "x" * 300}, "affiliate_id", "300 characters"),
        ({"post_id": "a\0b"}, "post_id", "NUL"),
        ({"likes": 3}, None, "'likes' is not a field of a report"),
    ],
)
def test_bad_input_is_answered_with_the_reason(
    intake: Intake, sessions: Sessions, changes: dict[str, Any], field: str | None, reason: str
) -> None:
    answer = intake.client.post(**changes)
    assert answer.status_code == 422
    error = answer.json()["error"]
    assert (error["code"], error.get("field")) == ("invalid_report", field)
    assert reason in error["message"]
    assert rows(sessions, AffiliateReport) == []
    assert intake.queue.depth == 0


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        (b"", 400, "not UTF-8 JSON"),
        (b"{", 400, "not UTF-8 JSON"),
        (b"[]", 400, "a JSON object was expected, not an array"),
        (b'{"affiliate_id": "\xff"}', 400, "not UTF-8 JSON"),
        (json.dumps({**GOOD, "post_id": "x" * 70_000}).encode(), 413, "at most 65536 bytes"),
        (b"[" * 60_000, 400, "not UTF-8 JSON"),
    ],
    ids=range(6),
)
def test_what_is_no_report_at_all(intake: Intake, body: bytes, status: int, reason: str) -> None:
    answer = intake.client.request("POST", "/reports", content=body)
    assert answer.status_code == status
    assert reason in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/reports/999", 404),
        ("GET", f"/reports/{10**40}", 404),
        ("GET", "/reports/one", 404),
        ("GET", "/nothing", 404),
        ("GET", "/reports", 405),
        ("DELETE", "/reports/1", 405),
    ],
)
def test_what_is_not_there(intake: Intake, method: str, path: str, status: int) -> None:
    answer = intake.client.request(method, path)
    assert answer.status_code == status
    assert answer.json()["error"]["code"] == f"http_{status}"


def test_a_report_sent_twice_under_one_key_is_one_report(intake: Intake, sessions: Sessions) -> None:
    key = {"Idempotency-Key": "order-1"}
    first, again = intake.client.post(headers=key), intake.client.post(headers=key)
    assert (first.status_code, again.status_code) == (202, 200)
    assert again.json() == first.json()
    assert intake.queue.depth == 1
    other = intake.client.post(headers=key, claimed_views=7)
    assert (other.status_code, other.json()["error"]["code"]) == (409, "key_reused")
    assert (
        intake.client.post(headers=key, affiliate_id="bob").status_code == 202
    )  # keys belong to the affiliate
    assert intake.client.post().status_code == 202
    assert len(rows(sessions, AffiliateReport)) == 3


def test_many_at_once_under_one_key_are_one_report(intake: Intake, sessions: Sessions) -> None:
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda _: intake.client.post(headers={"Idempotency-Key": "k"}), range(12)))
    assert sorted(answer.status_code for answer in answers) == [200] * 11 + [202]
    assert len({answer.json()["report_id"] for answer in answers}) == 1
    assert intake.queue.depth == 1


@pytest.mark.clause("W-29")
@pytest.mark.parametrize(
    "error",
    [QueueFullError("full since you looked", 5_000), StoreUnavailableError("away")],
    ids=["full", "away"],
)
def test_a_report_that_did_not_get_into_the_queue_is_not_lost(sessions: Sessions, error: Exception) -> None:
    """The queue refuses between the check and the enqueue."""
    clock = ManualClock()

    class Closing(PriorityDelayQueue):
        def enqueue(self, *args: Any, **options: Any) -> QueueItem:
            raise error

    client = Client(create_app(sessions, Closing(clock=clock), clock=clock))
    answer = client.post()
    assert answer.status_code == 202
    queue = PriorityDelayQueue(clock=clock)
    assert RetryScheduler(sessions, queue, clock=clock).run_once() == 1
    item = queue.dequeue(block=False)
    assert item is not None
    assert (item.job.affiliate_report_id, item.job.attempt) == (answer.json()["report_id"], 1)


@pytest.mark.clause("W-29")
def test_a_crash_between_storing_and_enqueueing_loses_nothing(sessions: Sessions) -> None:
    clock = ManualClock()

    class Crash(BaseException):
        pass

    class Crashing(PriorityDelayQueue):
        def enqueue(self, *args: Any, **options: Any) -> QueueItem:
            raise Crash

    client = Client(create_app(sessions, Crashing(clock=clock), clock=clock))
    with pytest.raises(Crash):
        client.post()
    (stored,) = rows(sessions, AffiliateReport)
    assert resume(sessions, moment(clock)) == 1
    queue = PriorityDelayQueue(clock=clock)
    RetryScheduler(sessions, queue, clock=clock).run_once()
    item = queue.dequeue(block=False)
    assert item is not None
    assert item.job.affiliate_report_id == stored.id


def test_a_queue_that_is_shut_down_is_told_with_503(intake: Intake, sessions: Sessions) -> None:
    intake.queue.shutdown()
    answer = intake.client.post()
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "shutting_down")
    assert "Retry-After" in answer.headers
    assert rows(sessions, AffiliateReport) == []


def test_a_database_that_is_away_is_told_with_503(
    intake: Intake, sessions: Sessions, caplog: pytest.LogCaptureFixture
) -> None:
    def away(*_: Any) -> None:
        raise OperationalError("", None, OSError("no route to postgresql://app:hunter2@db/x"))

    event.listen(sessions.kw["bind"], "before_cursor_execute", away)
    answers = [intake.client.post(), intake.client.get("/reports/1"), intake.client.get("/health")]
    event.remove(sessions.kw["bind"], "before_cursor_execute", away)
    for answer in answers:
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "storage_unavailable")
        assert "Retry-After" in answer.headers
        assert "hunter2" not in answer.text
    assert "hunter2" not in caplog.text
    assert intake.client.post().status_code == 202


def test_health_and_metrics(intake: Intake) -> None:
    intake.client.post()
    health = intake.client.get("/health")
    assert health.status_code == 200
    assert health.json() == {
        "status": "ok",
        "queue": {"depth": 1, "ready": 1, "scheduled": 0, "shutdown": False},
        "database": {"attempts": 0, "overdue_seconds": 0.0},
    }
    metrics = intake.client.get("/metrics")
    assert metrics.status_code == 200
    assert metrics.headers["Content-Type"].startswith("text/plain")
    assert 'conquiet_intake_reports_total{outcome="accepted"}' in metrics.text


@pytest.mark.clause("W-12")
def test_the_correlation_id_goes_from_the_request_to_the_log_and_the_job(
    intake: Intake, sessions: Sessions, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "conquiet.reconcile")
    given = intake.client.post(headers={"X-Correlation-ID": "request-7"}).json()
    made = intake.client.post().json()
    assert given["correlation_id"] == "request-7"
    assert len(made["correlation_id"]) == 32
    said = [
        vars(record)["correlation_id"]
        for record in caplog.records
        if getattr(record, "event", "") == "report_accepted"
    ]
    assert said == ["request-7", made["correlation_id"]]
    assert report(sessions, given["report_id"]).correlation_id == "request-7"
    refused = intake.client.post(headers={"X-Correlation-ID": "x" * 300})
    assert (refused.status_code, refused.json()["error"]["field"]) == (422, "X-Correlation-ID")


def test_priorities_that_the_queue_does_not_have_are_refused_at_once(sessions: Sessions) -> None:
    rules = replace(DEFAULT_RULES, risk=RiskRules(suspicious_priority="urgent"))
    with pytest.raises(ReconcileConfigError, match="the queue has no priority 'urgent'"):
        create_app(sessions, PriorityDelayQueue(), rules=rules)
