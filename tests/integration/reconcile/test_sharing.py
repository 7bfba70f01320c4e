"""Several processes of the service with one Redis: one rate per affiliate, one breaker per platform."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest
from sqlalchemy.orm import Session, sessionmaker

from conquiet.coordination import SharedBreakerRegistry, SharedPace, SharedState
from conquiet.embedded import RedisServer
from conquiet.errors import QueueConfigError, ReconcileConfigError
from conquiet.local import BreakerState, CircuitBreakerRegistry, Pace
from conquiet.reconcile import (
    DEFAULT_RULES,
    IntakeRules,
    PlatformFetcher,
    ReconciliationService,
    SimulatedAdapter,
)
from conquiet.reconcile.models import AffiliateReport
from conquiet.testing import ManualClock
from tests.integration.reconcile import sharing_server
from tests.integration.reconcile.reports import rows
from tests.integration.reconcile.test_intake import GOOD, Client

Sessions = sessionmaker[Session]


@contextmanager
def server(*arguments: str) -> Iterator[httpx.Client]:
    command = [sys.executable, sharing_server.__file__, *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        assert port.isdigit(), port + process.stdout.read()
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            yield client
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.clause("W-31", "W-32")
def test_processes_with_one_redis_have_one_rate_and_one_breaker(
    dsn: str, sessions: Sessions, redis_url: str
) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(server(dsn, redis_url)) for _ in range(3)]
        report = {**GOOD, "platform": "sim"}
        for _ in range(5):
            assert clients[0].post("/reports", json=report | {"affiliate_id": "bob"}).status_code == 202
        while 'conquiet_breaker_state_gauge{platform="sim"} 2.0' not in clients[0].get("/metrics").text:
            pass
        for client in clients[1:]:  # whose first report is this one
            path = client.post("/reports", json=report | {"affiliate_id": "bob"}).headers["Location"]
            while not (attempts := client.get(path).json()["attempts"]):
                pass
            assert [attempt["error_code"] for attempt in attempts] == ["circuit_open"]
        answers = [clients[number % 3].post("/reports", json=report).status_code for number in range(30)]
        assert (answers.count(202), answers.count(429)) == (20, 10)
        assert len(rows(sessions, AffiliateReport)) == 27
        for client in clients:
            assert "conquiet_shared_state_away 0.0" in client.get("/metrics").text


def sim(clock: ManualClock, **settings: Any) -> PlatformFetcher:
    return PlatformFetcher({"sim": SimulatedAdapter(clock=clock)}, clock=clock, **settings)


@pytest.mark.clause("W-31", "W-32")
def test_without_redis_the_service_goes_on_and_says_so(
    dsn: str, sessions: Sessions, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    rules = replace(DEFAULT_RULES, intake=IntakeRules(burst=2))
    with RedisServer() as redis:
        url = redis.url
        state = SharedState(url, clock=clock, timeout_seconds=60)
        service = ReconciliationService(dsn, sim(clock), rules=rules, shared=state, clock=clock)
        client = Client(service.app)
        assert client.post(platform="sim").status_code == 202
    answers = [client.post(platform="sim").status_code for _ in range(3)]
    assert answers == [202, 202, 429]  # the process counts by itself from here
    service.stop()
    state.close()
    told = [record.getMessage() for record in caplog.records if record.name == "conquiet.coordination"]
    assert len(told) == 1
    assert "until it is, this process decides by itself" in told[0]


@pytest.mark.clause("W-31", "W-34")
def test_a_fetcher_shares_what_it_was_not_given(redis_url: str) -> None:
    clock = ManualClock()
    state = SharedState(redis_url, clock=clock, timeout_seconds=60)
    shared = sim(clock).sharing(state)
    assert isinstance(shared._breakers, SharedBreakerRegistry)
    assert isinstance(shared._pace, SharedPace)
    assert shared.platforms == ("sim",)
    assert shared.fetch("sim", "p1").error_code is None
    assert shared._breakers.states() == {"sim": BreakerState.CLOSED}
    breakers, pace = CircuitBreakerRegistry(), Pace()
    kept = sim(clock, breakers=breakers, pace=pace).sharing(state)
    assert (kept._breakers, kept._pace) == (breakers, pace)
    state.close()


def test_what_is_no_redis_is_refused(dsn: str) -> None:
    with pytest.raises(QueueConfigError, match="is not a usable Redis URL"):
        ReconciliationService(dsn, sim(ManualClock()), shared="http://localhost")
    with pytest.raises(ReconcileConfigError, match="shared must be a Redis URL or a SharedState"):
        ReconciliationService(dsn, sim(ManualClock()), shared=5)  # type: ignore[arg-type]
