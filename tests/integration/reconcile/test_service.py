"""The whole service behind a real HTTP server: reports in, verdicts out, killed in between."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from sqlalchemy.orm import Session, sessionmaker

from conquiet.errors import ReconcileConfigError
from conquiet.local import LAST_EXCEPTIONS
from conquiet.reconcile import (
    Observation,
    PlatformAdapter,
    PlatformFetcher,
    ReconciliationService,
    SimulatedAdapter,
    trust_scores,
)
from conquiet.reconcile.models import AffiliateReport, ScheduledAttempt, TrustEntry
from tests.integration.reconcile import serving
from tests.integration.reconcile.reports import counts, rows
from tests.unit.local.taking import wait_for

Sessions = sessionmaker[Session]
TRUTH = SimulatedAdapter(serving.SEED)
EXTRA = (0, 7, 15, 35)  # percent too many; none on a threshold, where the milliseconds that pass would count


def payload(number: int) -> dict[str, Any]:
    views, clicks, conversions = TRUTH.truth(f"post {number}")
    assert views is not None
    return {
        "affiliate_id": f"affiliate {number % 7}",
        "platform": "sim",
        "post_id": f"post {number}",
        "claimed_views": views + views * EXTRA[number % 4] // 100,
        "claimed_clicks": clicks,
        "claimed_conversions": conversions,
    }


@contextmanager
def server(dsn: str) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    process = subprocess.Popen(
        [sys.executable, serving.__file__, dsn], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        assert port.isdigit(), port + process.stdout.read()
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            yield process, client
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def hand_in(client: httpx.Client, number: int) -> bool:
    """Post the report with a key, so that it can be repeated; False if the server is down."""
    try:
        answer = client.post("/reports", json=payload(number), headers={"Idempotency-Key": str(number)})
    except httpx.TransportError:
        return False
    assert answer.status_code in (200, 202), answer.text
    return True


@pytest.mark.clause("W-24", "W-29")
def test_killed_and_started_again_every_report_ends_and_trust_is_as_undisturbed(
    sessions: Sessions, dsn: str
) -> None:
    waiting = set(range(120))
    for kill_after in (20, 35, None):
        with server(dsn) as (process, client), ThreadPoolExecutor(4) as pool:
            asked = {pool.submit(hand_in, client, number): number for number in sorted(waiting)}
            for count, answered in enumerate(as_completed(asked), start=1):
                if answered.result():
                    waiting.discard(asked[answered])
                if count == kill_after:
                    os.kill(process.pid, signal.SIGKILL)
            if kill_after is None:
                while any(one.finished_at is None for one in rows(sessions, AffiliateReport)):
                    pass
                process.send_signal(signal.SIGTERM)
                assert process.wait(60) == -signal.SIGTERM  # uvicorn raises it again at its end
    assert waiting == set()
    assert len(rows(sessions, AffiliateReport)) == 120
    assert counts(sessions)["attempts"] == 120
    expected: dict[str, int] = {}
    for number in range(120):
        name = f"affiliate {number % 7}"
        expected[name] = expected.get(name, 50) + delta(number)
    with sessions() as session:
        found = trust_scores(session)
    assert found == {name: max(0, min(100, total)) / 100 for name, total in expected.items()}
    assert len(rows(sessions, TrustEntry)) == 120


def delta(number: int) -> int:
    """The trust change for the claim of `payload(number)`, in hundredths."""
    views = TRUTH.truth(f"post {number}").views
    assert views is not None
    share = (views * EXTRA[number % 4] // 100) / views
    return next(change for bound, change in ((0.05, 1), (0.10, -1), (0.16, -3), (1.0, -10)) if share <= bound)


def test_an_asgi_server_starts_and_stops_it(dsn: str) -> None:
    LAST_EXCEPTIONS.clear()
    service = ReconciliationService(dsn, PlatformFetcher({"sim": SimulatedAdapter(serving.SEED)}))

    async def live() -> dict[str, Any]:
        transport = httpx.ASGITransport(app=service.app)
        async with (
            service.app.router.lifespan_context(service.app),
            httpx.AsyncClient(transport=transport, base_url="http://service") as client,
        ):
            report_id = (await client.post("/reports", json=payload(1))).json()["report_id"]
            while True:
                shown: dict[str, Any] = (await client.get(f"/reports/{report_id}")).json()
                if shown["status"] is not None:
                    return shown

    shown = asyncio.run(live())
    assert len(shown["attempts"]) == 1
    assert LAST_EXCEPTIONS == []
    assert service.queue.snapshot()["shutdown"]
    with pytest.raises(ReconcileConfigError, match="started before"):
        service.start()


class Held(PlatformAdapter):
    """A platform whose answers come when the test says so."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.go_on = threading.Event()

    def fetch(self, post_id: str) -> Observation:
        self.begun.append(post_id)
        assert self.go_on.wait(120)
        return Observation(TRUTH.truth(post_id))


def let_end(service: ReconciliationService, held: Held) -> None:
    """Let the abandoned attempt end, and close what it opened."""
    held.go_on.set()
    assert service._pool.join(60)
    service.sessions.kw["bind"].dispose()


def test_a_stop_takes_its_time_once_and_begins_nothing(dsn: str, sessions: Sessions) -> None:
    held = Held()
    service = ReconciliationService(dsn, PlatformFetcher({"sim": held}), workers=1, stop_seconds=1.0)
    service.start()
    for number in range(6):
        service.queue.enqueue(serving.stored(service, payload(number)))
    wait_for(lambda: len(held.begun) == 1, 60)
    in_vain: list[float] = []  # how long it is ready to wait for what does not end
    joined = threading.Thread.join

    def join(thread: threading.Thread, timeout: float | None = None) -> None:
        joined(thread, timeout)
        if thread.is_alive():
            in_vain.append(timeout or 0.0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "join", join)
        service.stop()
    assert 0.0 < sum(in_vain) <= 1.0
    let_end(service, held)
    with sessions() as session:
        assert session.query(ScheduledAttempt).filter_by(enqueued_at=None).count() == 5
    assert len(held.begun) == 1


def test_what_a_process_leaves_another_makes(
    dsn: str, sessions: Sessions, caplog: pytest.LogCaptureFixture
) -> None:
    held, quick = Held(), PlatformFetcher({"sim": SimulatedAdapter(serving.SEED)})
    with ReconciliationService(dsn, quick, scheduler_seconds=0.05):
        leaving = ReconciliationService(dsn, PlatformFetcher({"sim": held}), workers=1)
        with leaving:
            for number in range(6):
                delay = 300.0 if number == 5 else 0.0
                leaving.queue.enqueue(serving.stored(leaving, payload(number)), delay_seconds=delay)
            wait_for(lambda: len(held.begun) == 1, 60)
            leaving.request_stop()
            held.go_on.set()
        wait_for(lambda: counts(sessions)["attempts"] == 6, 60)
    assert len(held.begun) == 1
    assert {one.attempts for one in rows(sessions, AffiliateReport)} == {1}
    said = [getattr(one, "event", "") for one in caplog.records]
    assert "service_stopped" in said
    assert "worker_stopped" not in said  # "they are lost", which is not so in a service


def test_what_does_not_end_in_time_is_left_to_the_next_start(dsn: str, sessions: Sessions) -> None:
    held = Held()
    service = ReconciliationService(dsn, PlatformFetcher({"sim": held}), workers=1, stop_seconds=0.1)
    with service:
        for number in range(10):
            service.queue.enqueue(serving.stored(service, payload(number)))
        wait_for(lambda: len(held.begun) == 1, 60)
    assert counts(sessions)["attempts"] == 0
    quick = PlatformFetcher({"sim": SimulatedAdapter(serving.SEED)})
    with ReconciliationService(dsn, quick):
        wait_for(lambda: counts(sessions)["attempts"] == 10, 60)
    let_end(service, held)
    assert {one.attempts for one in rows(sessions, AffiliateReport)} == {1}
