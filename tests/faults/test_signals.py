"""Workers paused (SIGSTOP) around the end of their lease, told to end (SIGTERM) at every step, and killed (SIGKILL)."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

from conquiet.jobs import JobState, JobStore, JobWorker, open_store
from tests.campaign import campaign_size
from tests.faults.figures import Record, percentiles
from tests.faults.held import HeldWorker
from tests.integration.jobs.background import Running, until
from tests.integration.jobs.effects import Effects, insert

TTL = 0.5
PAUSES = (0.98, 1.02, 6.0)  # of the lease
AT_A_TIME = 16  # they mostly wait
STORES = ("SQLite", "PostgreSQL")
MakeDsn = Callable[[str, str], str]


@pytest.fixture
def make_dsn(postgres_dsn: str, tmp_path: Path) -> MakeDsn:
    """A corner for each case: they run side by side, and on SQLite one that is paused may hold the only lock."""

    def make(store: str, name: str) -> str:
        if store == "SQLite":
            return f"sqlite:///{tmp_path / name}.db"
        with psycopg.connect(postgres_dsn, autocommit=True) as admin:
            admin.execute(f"CREATE SCHEMA {name}")
        return f"{postgres_dsn}?options={quote(f'-c search_path={name}')}"

    return make


def settled(store: JobStore, ids: list[str], effects: Effects) -> int:
    """After the fault: everything is done, once. How many jobs lost a lease on the way."""
    jobs = [job for job in map(store.get, ids) if job is not None]
    assert [job.state for job in jobs] == [JobState.SUCCEEDED] * len(ids)
    for job in jobs:
        assert [a.outcome for a in job.attempts].count("succeeded") == 1
    assert effects.numbers() == sorted(job.payload["n"] for job in jobs if job.queue == "effect")
    return sum(job.lease_expiries for job in jobs)


def paused(dsn: str, point: str) -> tuple[int, int, int]:
    """One worker, paused at `point` in job after job; another one waits beside. Pauses, taken over, refused."""
    with open_store(dsn, max_lease_expiries=1_000) as store, HeldWorker(dsn, point, TTL) as held:
        effects = Effects(store)
        held.wait_for("ready")
        ids = []
        for n, share in enumerate(PAUSES):
            ids.append(store.enqueue("effect", {"n": n}).id)
            held.wait_for(f"at {point}")
            held.send(signal.SIGSTOP)
            with Running(JobWorker(store, insert, queues="effect", lease_ttl=TTL, worker="other")):
                time.sleep(share * TTL)
                held.send(signal.SIGCONT)
                held.go_on()
                until(lambda job_id=ids[-1]: store.get(job_id).state is JobState.SUCCEEDED, 60)
        held.send(signal.SIGTERM)
        held.wait_for("stop 1")
        counts = held.end()
        return len(PAUSES), settled(store, ids, effects), counts["lost"]


@pytest.mark.campaign
@pytest.mark.clause("J-26", "J-12", "J-10")
def test_sigstop_of_a_lease_more_or_less_in_handler_heartbeat_and_commit(
    make_dsn: MakeDsn, record_figure: Record
) -> None:
    rounds = campaign_size(10)
    cases = [
        (store, point, n)
        for n in range(rounds)
        for point in ("handler", "heartbeat", "commit")
        for store in STORES
    ]
    with ThreadPoolExecutor(AT_A_TIME) as beside:
        ends = list(beside.map(lambda c: paused(make_dsn(c[0], f"{c[1]}_{c[2]}"), c[1]), cases))
    for store in STORES:
        own = [end for end, case in zip(ends, cases, strict=True) if case[0] == store]
        pauses, taken_over, refused = (sum(column) for column in zip(*own, strict=True))
        record_figure(
            f"{store}: SIGSTOP of 0.98, 1.02 and 6 x TTL in handler, heartbeat, commit",
            n=pauses,
            jobs_taken_over=taken_over,
            stale_settles_refused=refused,
        )
        # Six leases long, in handler or heartbeat, is too long every time; what was done meanwhile was refused.
        assert taken_over >= 2 * rounds
        assert refused >= 2 * rounds


def told_to_end(dsn: str, point: str, times: int) -> int:
    """A worker told to end `times` times while it stands at `point`; then another one does what is left."""
    with open_store(dsn, max_lease_expiries=1_000) as store, HeldWorker(dsn, point, TTL) as held:
        effects = Effects(store)
        held.wait_for("ready")
        if point == "claim":
            held.wait_for("at claim")
        # Both at once: the worker may hold SQLite's only lock as soon as it has one.
        ids = store.enqueue_many("plain" if point == "ack" else "effect", [{"n": 0}, {"n": 1}])
        if point != "claim":
            held.wait_for(f"at {point}")
        for number in range(1, times + 1):
            held.send(signal.SIGTERM)
            held.wait_for(f"stop {number}")
        # Told twice, it ends without waiting for a handler or a settlement. A claim has to be answered.
        if times == 1 or point == "claim":
            held.go_on()
        counts = held.end()
        handlers = {"effect": insert, "plain": lambda job: None}
        with Running(JobWorker(store, handlers, lease_ttl=TTL, worker="other")):
            until(lambda: all(store.get(job_id).state is JobState.SUCCEEDED for job_id in ids), 60)
        if times == 1 and point != "claim":
            assert counts["succeeded"] == 1  # what had begun was finished, the other one was not begun
        settled(store, ids, effects)
        return len(ids)


@pytest.mark.campaign
@pytest.mark.clause("J-22")
def test_sigterm_once_and_twice_at_each_step(make_dsn: MakeDsn, record_figure: Record) -> None:
    cases = [
        (store, point, times, n)
        for n in range(campaign_size(10))
        for point in ("claim", "handler", "ack", "commit")
        for times in (1, 2)
        for store in STORES
    ]

    def run(case: tuple[str, str, int, int]) -> int:
        store, point, times, n = case
        return told_to_end(make_dsn(store, f"{point}_{times}_{n}"), point, times)

    with ThreadPoolExecutor(AT_A_TIME) as beside:
        jobs = list(beside.map(run, cases))
    for store in STORES:
        own = [count for count, case in zip(jobs, cases, strict=True) if case[0] == store]
        record_figure(
            f"{store}: SIGTERM once and twice before claim, in handler, before ack, in commit",
            n=len(own),
            jobs=sum(own),
        )


def killed(dsn: str, point: str) -> tuple[float, float]:
    """How long after the end of the lease its job was taken over, by the store's clock, and after the kill was done."""
    with open_store(dsn, max_lease_expiries=1_000) as store, HeldWorker(dsn, point, TTL) as held:
        effects = Effects(store)
        held.wait_for("ready")
        job_id = store.enqueue("effect", {"n": 1}).id
        held.wait_for(f"at {point}")
        with Running(JobWorker(store, insert, queues="effect", lease_ttl=TTL, worker="other")):
            held.send(signal.SIGKILL)
            began = time.monotonic()
            until(lambda: store.get(job_id).state is JobState.SUCCEEDED, 60)
            lasted = time.monotonic() - began
        assert settled(store, [job_id], effects) == 1
        job = store.get(job_id)
        assert job is not None
        first, second = job.attempts
        return (second.started_at - first.ended_at).total_seconds(), lasted


@pytest.mark.campaign
@pytest.mark.clause("J-22", "J-10")
def test_a_killed_workers_job_is_taken_over_soon_after_its_lease(
    make_dsn: MakeDsn, record_figure: Record
) -> None:
    cases = [(point, n) for n in range(campaign_size(40)) for point in ("handler", "commit")]
    for store in STORES:
        with ThreadPoolExecutor(2) as beside:  # it is about time: no crowd
            ends = list(
                beside.map(lambda c, store=store: killed(make_dsn(store, f"kill_{c[0]}_{c[1]}"), c[0]), cases)
            )
        late, lasted = zip(*ends, strict=True)
        record_figure(
            f"{store}: worker killed, another one waits (lease {TTL} s)",
            n=len(cases),
            taken_over_after_the_lease=percentiles(late),
            done_after_the_kill=percentiles(lasted),
        )
