"""The whole service behind a real HTTP server: reports in, verdicts out, killed in between."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from sqlalchemy.orm import Session, sessionmaker

from conquiet.errors import ReconcileConfigError
from conquiet.local import LAST_EXCEPTIONS
from conquiet.reconcile import PlatformFetcher, ReconciliationService, SimulatedAdapter, trust_scores
from conquiet.reconcile.models import AffiliateReport, TrustEntry
from tests.integration.reconcile import serving
from tests.integration.reconcile.reports import counts, rows

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


def test_what_does_not_end_in_time_is_left_to_the_next_start(dsn: str, sessions: Sessions) -> None:
    slow = PlatformFetcher({"sim": SimulatedAdapter(serving.SEED, latency_seconds=0.2)})
    service = ReconciliationService(dsn, slow, workers=1, stop_seconds=0.3)
    with service:
        for number in range(10):
            service.queue.enqueue(serving.stored(service, payload(number)))
    done = counts(sessions)["attempts"]
    assert 0 < done < 10
    quick = PlatformFetcher({"sim": SimulatedAdapter(serving.SEED)})
    with ReconciliationService(dsn, quick):
        while counts(sessions)["attempts"] < 10:
            pass
    assert {one.attempts for one in rows(sessions, AffiliateReport)} == {1}
