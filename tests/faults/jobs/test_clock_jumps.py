"""The store's clock jumps by an hour, forwards and back, while jobs are held: leases follow it, and nothing breaks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from conquiet.jobs import JobState, StaleLeaseError
from tests.conformance.sources import MemorySource, PostgresSource, SqliteSource
from tests.faults.figures import Record

HOUR = 3600.0
QUEUE = "q"
pytestmark = pytest.mark.campaign  # always runs in full; part of the campaign's list


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A store whose clock can be set. On PostgreSQL a function found before the built-in one replaces it."""
    if request.param == "postgresql":
        dsn = PostgresSource.prepare(request.getfixturevalue("postgres_dsn"))
        with psycopg.connect(dsn, autocommit=True) as admin:
            made = PostgresSource(dsn, admin, None)
            yield made
            made.close()
    else:
        plain = MemorySource(None) if request.param == "memory" else SqliteSource(tmp_path, None)
        yield plain
        plain.close()


@pytest.mark.clause("J-10", "J-12")
def test_an_hour_forwards(source: Any, record_figure: Record) -> None:
    """Every lease ends at the same moment: others take the jobs, and the former holders are refused everything."""
    jobs = 20
    store = source.open()
    store.enqueue_many(QUEUE, [{"n": n} for n in range(jobs)])
    store.enqueue(QUEUE, {"n": jobs}, id="delayed", delay=HOUR / 2)
    held = store.claim(QUEUE, jobs, lease_ttl=60.0, worker="first")
    source.advance(HOUR)
    taken = store.claim(QUEUE, 100, lease_ttl=60.0, worker="second")
    assert {job.id for job in taken} == {job.id for job in held} | {"delayed"}
    refused = 0
    for job in held:
        for settle in (store.ack, store.nack, store.release, store.heartbeat):
            with pytest.raises(StaleLeaseError):
                settle(job)
            refused += 1
    assert all(result.ok for result in store.ack_many(taken))
    lost = [job for job in store.list() if job.state is not JobState.SUCCEEDED]
    record_figure(
        f"{store.capabilities.name}: clock an hour forwards",
        n=1,
        lost=len(lost),
        jobs=jobs,
        stale_settles_refused=refused,
        whole=True,
    )
    assert lost == []
    assert all([a.outcome for a in store.get(job.id).attempts][-1] == "succeeded" for job in taken)


@pytest.mark.clause("J-11", "J-12")
def test_an_hour_back(source: Any, record_figure: Record) -> None:
    """Held jobs stay with their holders, who can settle them; when the clock has caught up nothing is missing."""
    jobs = 20
    store = source.open()
    store.enqueue_many(QUEUE, [{"n": n} for n in range(jobs)])
    held = store.claim(QUEUE, jobs // 2, lease_ttl=60.0, worker="first")
    source.turn_back(HOUR)
    others = store.claim(QUEUE, 100, lease_ttl=60.0, worker="second")
    assert len(others) == jobs // 2
    assert not {job.id for job in others} & {job.id for job in held}
    kept = [store.heartbeat(job) for job in held]
    assert all(after.lease.expires_at >= job.lease.expires_at for job, after in zip(held, kept, strict=True))
    assert all(result.ok for result in store.ack_many(held[: jobs // 4]))
    source.advance(2 * HOUR)  # the other holders have died
    rest = store.claim(QUEUE, 100, lease_ttl=60.0, worker="third")
    assert all(result.ok for result in store.ack_many(rest))
    lost = [job for job in store.list() if job.state is not JobState.SUCCEEDED]
    record_figure(
        f"{store.capabilities.name}: clock an hour back", n=1, lost=len(lost), jobs=jobs, whole=True
    )
    assert lost == []
