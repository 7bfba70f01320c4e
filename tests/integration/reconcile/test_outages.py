"""A database server that dies under a running service and comes back: nothing is lost, and nobody has to help."""

from __future__ import annotations

import asyncio
import logging
import threading
import time

import httpx
import pytest

from conquiet.embedded import PostgresServer
from conquiet.errors import StoreUnavailableError
from conquiet.local import LAST_EXCEPTIONS
from conquiet.reconcile import (
    Metrics,
    PlatformFetcher,
    ReconciliationService,
    SimulatedAdapter,
    open_database,
)
from conquiet.reconcile.models import AffiliateReport
from conquiet.testing import ManualClock
from tests.integration.reconcile.reports import counts, rows, store
from tests.unit.local.taking import wait_for


@pytest.mark.clause("W-14", "W-24", "W-29")
def test_a_short_outage_burns_no_job(caplog: pytest.LogCaptureFixture) -> None:
    LAST_EXCEPTIONS.clear()
    adapter = SimulatedAdapter(posts={"p1": Metrics(1000, 30, 2)}, latency_seconds=0.002)
    with PostgresServer() as server:
        sessions = open_database(server.dsn)
        clock = ManualClock(time.time())
        jobs = [store(sessions, clock) for _ in range(200)]
        service = ReconciliationService(server.dsn, PlatformFetcher({"instagram": adapter}), workers=2)

        def attempts() -> int:
            try:
                return counts(sessions)["attempts"]
            except StoreUnavailableError:  # it has just been started
                return 0

        with service:  # its start finds the reports
            wait_for(lambda: counts(sessions)["attempts"] >= 5, 60)
            server.kill()
            wait_for(lambda: "workers_paused" in [getattr(one, "event", "") for one in caplog.records], 60)
            assert LAST_EXCEPTIONS == []
            server.start()
            wait_for(lambda: attempts() == 200, 60)
        assert LAST_EXCEPTIONS == []
        assert {one.status for one in rows(sessions, AffiliateReport)} == {"MATCHED"}
        assert counts(sessions)["trust_ledger"] == len(jobs)
        sessions.kw["bind"].dispose()


def test_a_server_that_hangs_is_away(caplog: pytest.LogCaptureFixture) -> None:
    """It accepts connections and answers none: requests are refused, the workers pause, and all goes on afterwards."""
    caplog.set_level(logging.INFO)
    adapter = SimulatedAdapter(posts={"p1": Metrics(1000, 30, 2)}, latency_seconds=0.002)
    with PostgresServer() as server:
        sessions = open_database(server.dsn)
        jobs = [store(sessions, ManualClock(time.time())) for _ in range(200)]
        # One worker: of several, one may go on before another has noticed that its statement is late.
        service = ReconciliationService(
            server.dsn, PlatformFetcher({"instagram": adapter}), workers=1, stop_seconds=60
        )

        def events() -> list[str]:
            return [getattr(one, "event", "") for one in caplog.records]

        async def ask(path: str) -> httpx.Response:
            transport = httpx.ASGITransport(app=service.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
                return await asyncio.wait_for(client.get(path), 90)

        with service:
            wait_for(lambda: counts(sessions)["attempts"] >= 5, 60)
            server.pause()
            try:
                for path in ("/health", "/reports/1"):
                    assert asyncio.run(ask(path)).status_code == 503
                wait_for(lambda: "workers_paused" in events(), 90)
            finally:
                server.resume()
            wait_for(lambda: counts(sessions)["attempts"] == 200, 90)
            assert asyncio.run(ask("/health")).status_code == 200
        assert events().count("workers_paused") == 1
        errors = [getattr(one, "event", "") for one in caplog.records if one.levelname == "ERROR"]
        assert errors.count("storage_unavailable") == 1  # of two requests, and more after them
        assert errors.count("scheduler_failed") <= 1
        assert events().count("storage_returned") == 1
        assert "Pool disposed" not in caplog.text
        assert counts(sessions)["trust_ledger"] == len(jobs)
        sessions.kw["bind"].dispose()


def test_a_stop_does_not_wait_for_a_server_that_hangs() -> None:
    adapter = SimulatedAdapter(posts={"p1": Metrics(1000, 30, 2)}, latency_seconds=0.002)
    with PostgresServer() as server:
        sessions = open_database(server.dsn)
        for _ in range(200):
            store(sessions, ManualClock(time.time()))
        service = ReconciliationService(server.dsn, PlatformFetcher({"instagram": adapter}), stop_seconds=1.0)
        service.start()
        wait_for(lambda: counts(sessions)["attempts"] >= 5, 60)
        pool = service.sessions.kw["bind"].pool
        server.pause()
        try:
            stopping = threading.Thread(target=service.stop, daemon=True)
            stopping.start()
            stopping.join(60)
            assert not stopping.is_alive()
        finally:
            server.resume()
        for thread in threading.enumerate():  # abandoned, and ended by the limit of their statements
            if thread.name.startswith("conquiet"):
                thread.join(60)
        for opened in (pool, service.sessions.kw["bind"].pool):  # what they used until then
            opened.dispose()
        sessions.kw["bind"].dispose()
