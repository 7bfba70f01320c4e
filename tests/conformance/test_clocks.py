"""Whose clock decides: the server's on PostgreSQL, the injected one elsewhere; and what happens when it jumps."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from conquiet.clock import SystemClock
from conquiet.jobs import (
    JobConfigError,
    JobState,
    NewJob,
    RetrySchedule,
    StaleLeaseError,
    open_async_store,
    open_store,
)
from conquiet.testing import ManualClock
from tests.conformance import programs
from tests.conformance.processes import Program
from tests.conformance.sources import START, Source, SqliteSource

QUEUE = "orders"
HOUR = 3600.0
SLACK = timedelta(seconds=5)


@pytest.mark.clause("J-16")
def test_a_heartbeat_never_shortens_a_lease(source: Any) -> None:
    """Not even after the clock has been set back."""
    store = source.open()
    store.enqueue_many(QUEUE, [{}, {}])
    one, two = store.claim(QUEUE, 2, lease_ttl=60.0)
    source.turn_back(20.0)
    assert store.heartbeat(one) == one == store.get(one.id)
    assert [result.ok for result in store.heartbeat_many([one, two])] == [True, True]
    assert [store.get(one.id), store.get(two.id)] == [one, two]
    source.advance(21.0)
    assert store.heartbeat(one).lease.expires_at == one.lease.expires_at + timedelta(seconds=1)


@pytest.mark.clause("J-12", "J-11")
def test_a_clock_that_is_set_back_gives_no_job_away(source: Any) -> None:
    store = source.open()
    store.enqueue(QUEUE, {}, id="leased")
    (held,) = store.claim(QUEUE, lease_ttl=60.0)
    store.enqueue(QUEUE, {}, id="delayed", delay=30.0)
    source.advance(30.0)
    source.turn_back(20.0)
    assert store.claim(QUEUE, 10) == []
    source.advance(20.0)
    assert [job.id for job in store.claim(QUEUE, 10)] == ["delayed"]
    store.ack(held)


@pytest.mark.clause("J-25")
def test_at_is_a_time_of_the_stores_clock(source: Any) -> None:
    """It shows another year than the clock of this machine."""
    store, begun = source.open(), datetime.fromtimestamp(START, UTC)
    later = store.enqueue_job(QUEUE, NewJob({}, id="later", at=begun + timedelta(seconds=30)))
    store.enqueue_many(QUEUE, [NewJob({}, id="last", at=begun + timedelta(seconds=60))])
    past = store.enqueue_job(QUEUE, NewJob({}, id="past", at=begun - timedelta(seconds=1)))
    assert (later.retry_at, past.retry_at) == (begun + timedelta(seconds=30), None)
    assert store.get("later") == later
    assert [job.id for job in store.claim(QUEUE, 10, HOUR)] == ["past"]
    assert store.stats()[QUEUE].delayed == 2
    source.advance(29.0)
    assert store.claim(QUEUE, 10, HOUR) == []
    source.advance(1.0)
    assert [job.id for job in store.claim(QUEUE, 10, HOUR)] == ["later"]
    source.advance(30.0)
    assert [job.id for job in store.claim(QUEUE, 10, HOUR)] == ["last"]


@pytest.mark.clause("J-04")
def test_nor_does_it_lose_one(source: Any) -> None:
    """Jobs are due and leases have expired. One job is claimed, then the clock is set back: the others wait."""
    store = source.open()
    store.enqueue_many(QUEUE, [NewJob({}, id="a"), NewJob({}, id="b")])
    store.claim(QUEUE, 2, lease_ttl=30.0)
    store.enqueue_many(QUEUE, [NewJob({}, id="c", delay=30.0), NewJob({}, id="d", delay=30.0)])
    source.advance(30.0)
    assert [job.id for job in store.claim(QUEUE, lease_ttl=1000.0)] == ["a"]
    source.turn_back(10.0)
    early = store.claim(QUEUE, 10, lease_ttl=1000.0)  # those already noted as due, if the store does that
    source.advance(10.0)
    late = store.claim(QUEUE, 10, lease_ttl=1000.0)
    assert sorted(job.id for job in early + late) == ["b", "c", "d"]


@pytest.mark.clause("J-12", "J-10")
def test_no_fraction_of_a_microsecond_belongs_to_two_leases(source: Any) -> None:
    """Clocks are finer than the times in jobs. By those, too, a lease begins only after the previous one has ended."""
    store, ttl, instant = source.open(max_lease_expiries=1_000), 0.06, 2.0**-22
    store.enqueue(QUEUE, {})
    (held,) = store.claim(QUEUE, lease_ttl=ttl)
    for _ in range(40):
        source.advance(ttl - 4 * instant)
        while not (taken := store.claim(QUEUE, lease_ttl=ttl)):
            source.advance(instant)
        (after,) = taken
        assert after.lease.expires_at - timedelta(seconds=ttl) >= held.lease.expires_at
        held = after
    first, *others = store.get(held.id).attempts
    for attempt in others:
        assert attempt.started_at >= first.ended_at
        first = attempt


@pytest.mark.clause("J-15")
@pytest.mark.parametrize("waiting", ["claim", "heartbeat", "ack", "enqueue"])
def test_time_spent_waiting_for_sqlites_lock_is_not_the_leases(tmp_path: Any, waiting: str) -> None:
    """The time that counts is when the lock was acquired, not when it was requested."""
    source = SqliteSource(tmp_path, None)
    store = source.open()
    store.enqueue(QUEUE, {})
    held = None if waiting == "claim" else store.claim(QUEUE, lease_ttl=10.0)[0]
    work = {
        "claim": lambda: store.claim(QUEUE, lease_ttl=10.0)[0].lease.expires_at,
        "heartbeat": lambda: store.heartbeat(held).lease.expires_at,
        "ack": lambda: store.ack(held),
        "enqueue": lambda: store.enqueue(QUEUE, {}, delay=10.0).retry_at,
    }[waiting]
    with ThreadPoolExecutor(1) as beside, source.transaction() as connection:
        connection.execute("BEGIN IMMEDIATE")
        outcome = beside.submit(work)
        wait_until_asked(store)
        source.advance(12.0 if waiting == "ack" else 3.0)
        connection.rollback()
        if waiting == "ack":
            assert isinstance(outcome.exception(30), StaleLeaseError)
        else:
            assert outcome.result(30) == datetime.fromtimestamp(START + 13.0, UTC)
    source.close()


def wait_until_asked(store: Any) -> None:
    """Wait until the store's own lock is taken. It asks for SQLite's lock right after that."""
    end = time.monotonic() + 10
    while not store.operations.backend._lock.locked():
        assert time.monotonic() < end
        time.sleep(0.001)
    time.sleep(0.02)


def test_postgresql_takes_no_clock_from_outside(loop_thread: Any) -> None:
    dsn = "postgresql://app:secret@127.0.0.1:1/jobs"
    with pytest.raises(JobConfigError, match="server's clock"):
        open_store(dsn, clock=ManualClock())
    with pytest.raises(JobConfigError, match="server's clock"):
        loop_thread.wait(open_async_store(dsn, clock=ManualClock()))


@pytest.fixture(params=["sync", "async"])
def real(request: pytest.FixtureRequest, fresh_dsn: str) -> Iterator[Source]:
    """PostgreSQL with its real clock."""
    source = Source(request.getfixturevalue("loop_thread") if request.param == "async" else None)
    yield source
    source.close()


@pytest.mark.clause("J-25")
@pytest.mark.parametrize("shift", [-HOUR, HOUR])
def test_a_local_clock_that_is_an_hour_off_changes_nothing(
    real: Source, fresh_dsn: str, monkeypatch: pytest.MonkeyPatch, shift: float
) -> None:
    store = real.open_dsn(fresh_dsn, retry=RetrySchedule(base_seconds=20.0), random=lambda: 0.5)

    def asked(_: SystemClock) -> float:
        raise AssertionError("the store asked the local clock")

    right = time.time
    with monkeypatch.context() as patched, psycopg.connect(fresh_dsn, autocommit=True) as admin:
        patched.setattr(SystemClock, "time", asked)
        patched.setattr(time, "time", lambda: right() + shift)

        def now() -> datetime:
            return admin.execute("SELECT clock_timestamp()").fetchone()[0]

        given = store.enqueue(QUEUE, {}, id="a")
        delayed = store.enqueue(QUEUE, {}, id="b", delay=100.0)
        assert abs(given.enqueued_at - now()) < SLACK
        assert abs(delayed.retry_at - now() - timedelta(seconds=100)) < SLACK
        (held,) = store.claim(QUEUE, 10, lease_ttl=60.0)
        assert abs(held.lease.expires_at - now() - timedelta(seconds=60)) < SLACK
        assert store.claim(QUEUE, 10) == []
        assert store.stats()[QUEUE].expired == 0
        held = store.heartbeat(held)
        assert abs(held.lease.expires_at - now() - timedelta(seconds=60)) < SLACK
        store.nack(held, "no")
        job = store.get("a")
        assert abs(job.retry_at - now() - timedelta(seconds=10)) < SLACK
        assert abs(job.attempts[0].ended_at - now()) < SLACK
        assert store.claim(QUEUE, 10) == []
        assert store.prune(HOUR / 2) == 0


@pytest.mark.clause("J-25", "J-11")
@pytest.mark.parametrize("shift", [-HOUR, HOUR])
def test_a_worker_whose_clock_is_an_hour_off_is_a_worker_like_others(fresh_dsn: str, shift: float) -> None:
    with open_store(fresh_dsn) as store:
        store.enqueue("now", {}, id="now")
        store.enqueue("later", {}, id="later", delay=HOUR / 2)
        with Program(programs.claim_with_a_shifted_clock, fresh_dsn, shift, "now") as program:
            ((job_id, expiry),) = [line.split() for line in program.end()]
        assert job_id == "now"
        assert abs(float(expiry) - time.time() - 60.0) < SLACK.total_seconds()
        assert store.claim("now") == []  # it keeps its lease for as long as it asked
        with Program(programs.claim_with_a_shifted_clock, fresh_dsn, shift, "later") as program:
            assert program.end() == []
        assert store.stats()["now"].in_flight == 1


@pytest.mark.clause("J-25", "J-10", "J-15")
def test_a_lease_expires_by_the_servers_clock(real: Source, fresh_dsn: str) -> None:
    store = real.open_dsn(fresh_dsn)
    store.enqueue(QUEUE, {})
    (old,) = store.claim(QUEUE, lease_ttl=0.3)
    with psycopg.connect(fresh_dsn, autocommit=True) as admin:
        while not (jobs := store.claim(QUEUE, lease_ttl=60.0)):
            pass
        (now,) = admin.execute("SELECT clock_timestamp()").fetchone()
    assert old.lease.expires_at <= now
    assert jobs[0].lease.expires_at - timedelta(seconds=60) >= old.lease.expires_at
    with pytest.raises(StaleLeaseError):
        store.ack(old)
    store.ack(jobs[0])
    first, second = store.get(old.id).attempts
    assert first.started_at < first.ended_at == old.lease.expires_at <= second.started_at


@pytest.mark.clause("J-25")
def test_inside_a_long_transaction_time_goes_on(fresh_dsn: str) -> None:
    """now() would return the time at which the caller's transaction began."""
    with open_store(fresh_dsn) as store, psycopg.connect(fresh_dsn) as connection:
        connection.execute("SELECT now()")
        store.enqueue(QUEUE, {}, id="outside")
        inside = store.enqueue(QUEUE, {}, id="inside", connection=connection)
        assert inside.enqueued_at > store.get("outside").enqueued_at
        (held,) = store.claim(QUEUE, lease_ttl=0.2)
        while store.stats()[QUEUE].expired == 0:
            pass
        with pytest.raises(StaleLeaseError):
            store.ack(held, connection=connection)
        connection.rollback()
        assert store.get("outside").state is JobState.IN_FLIGHT
