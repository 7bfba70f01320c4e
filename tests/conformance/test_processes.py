"""Several processes on one store, with real clocks and leases that really expire."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from conquiet.embedded import PostgresServer
from conquiet.jobs import JobState, open_store
from conquiet.verify.history import History, check
from tests.campaign import campaign_size
from tests.conformance import programs
from tests.conformance.contention import contend, fill
from tests.conformance.processes import Program, all_at_once

PROCESSES = 3


@pytest.fixture(params=["sqlite", "postgresql"])
def dsn(request: pytest.FixtureRequest) -> Iterator[str]:
    """An empty durable database."""
    if request.param == "sqlite":
        yield f"sqlite:///{request.getfixturevalue('tmp_path')}/jobs.db"
    else:
        yield request.getfixturevalue("fresh_dsn")


@pytest.mark.clause("J-04", "J-11", "J-12")
def test_each_job_is_claimed_by_one_process(dsn: str) -> None:
    with open_store(dsn) as store:
        ids = store.enqueue_many("orders", [{}] * 300)
        lines = [line.split() for said in all_at_once(PROCESSES, programs.share, dsn) for line in said]
        assert Counter(job_id for job_id, _, _ in lines) == dict.fromkeys(ids, 1)
        assert len({token for _, token, _ in lines}) == len(ids)
        assert {version for _, _, version in lines} == {"1"}
        assert store.stats()["orders"].succeeded == len(ids)


@pytest.mark.clause("J-21")
def test_processes_that_open_an_empty_database_at_once_all_can(dsn: str) -> None:
    said = all_at_once(4, programs.open_at_once, dsn)
    with open_store(dsn, migrate="never") as store:
        assert {job.id for job in store.list()} == {line for lines in said for line in lines}
        assert len(store.list()) == 4


@pytest.mark.campaign
@pytest.mark.clause("J-04", "J-05", "J-09", "J-10", "J-11", "J-12")
def test_processes_that_lose_their_leases_never_hold_one_job_at_once(dsn: str, tmp_path: Path) -> None:
    path, seconds = tmp_path / "history", campaign_size(20)
    with open_store(dsn) as store, History(path) as history:
        fill(store, history, 20 * seconds)
        all_at_once(PROCESSES, programs.contend_for, dsn, path, "{number}", seconds)
        verdict = check(path, fenced=True)
        verdict.raise_if_broken()
        jobs = store.list(limit=100_000)
    assert {job.state for job in jobs} == {JobState.SUCCEEDED}
    assert sum(job.lease_expiries for job in jobs) > 5 * seconds  # many leases did expire
    for job in jobs:
        for before, after in zip(job.attempts, job.attempts[1:], strict=False):
            assert (after.number, after.started_at >= before.ended_at) == (before.number + 1, True)


@pytest.mark.campaign
@pytest.mark.clause("J-04", "J-05", "J-09", "J-10", "J-11", "J-12")
def test_so_do_threads_in_memory(tmp_path: Path) -> None:
    path, seconds = tmp_path / "history", campaign_size(20)
    with open_store("memory://", max_lease_expiries=100_000) as store, History(path) as history:
        fill(store, history, 20 * seconds)
        with ThreadPoolExecutor(PROCESSES) as threads:
            work = [threads.submit(contend, store, history, seed, seconds) for seed in range(PROCESSES)]
            for done in work:
                done.result(seconds + 60)
        check(path, fenced=True).raise_if_broken()
        assert sum(job.lease_expiries for job in store.list(limit=100_000)) > 5 * seconds


@pytest.mark.clause("J-21")
def test_what_was_enqueued_survives_the_kill_of_its_process(dsn: str) -> None:
    with Program(programs.enqueue, dsn) as program:
        said = [program.next_line() for _ in range(30)]
        said += program.kill()
    ids = [job_id for line in said if len(line) in (36, 110) for job_id in line.split()]
    assert len(ids) >= 60
    with open_store(dsn) as store:
        stored = store.list(limit=100_000)
        assert set(ids) <= {job.id for job in stored}
        assert {job.state for job in stored} == {JobState.READY}
        assert [job.id for job in store.claim("orders", len(ids))] == ids  # in order, too


@pytest.mark.clause("J-21")
def test_everything_survives_a_restart(dsn: str) -> None:
    with open_store(dsn) as store:
        for name in ("ready", "leased", "done", "failed"):
            store.enqueue(name, {"n": 1}, id=name, correlation_id="c")
        store.enqueue("delayed", {}, id="delayed", delay=1000.0)
        (leased,) = store.claim("leased", lease_ttl=1000.0)
        store.ack(store.claim("done")[0])
        store.nack(store.claim("failed")[0], ValueError("no"), retryable=False)
        before = store.list()
    with open_store(dsn) as store:
        assert store.list() == before
        assert store.claim(["ready", "leased", "delayed"], 10)[0].id == "ready"
        store.ack(leased)  # a lease belongs to the worker, not to the store object


@pytest.mark.clause("J-21")
def test_what_was_enqueued_survives_the_kill_of_the_server() -> None:
    with PostgresServer() as server, open_store(server.create_database("jobs")) as store:
        ids = store.enqueue_many("orders", [{"n": n} for n in range(100)])
        ids.append(store.enqueue("orders", {}).id)
        (held,) = store.claim("orders", lease_ttl=600.0)
        server.kill()
        server.start()
        found = store.list(limit=1000)
        assert [job.id for job in found] == ids
        assert found[0] == held
        store.ack(held)
