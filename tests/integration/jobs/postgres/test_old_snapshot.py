"""While somebody holds an old snapshot, PostgreSQL keeps dead rows: workers do not read them again for every claim."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest

from conquiet.flow import run
from conquiet.jobs import Job, JobStore, open_store
from conquiet.jobs.backends.postgres.cursors import ClaimCursors
from tests.index_reads import reads, wait_for_statistics

Claim = Callable[..., list[Job]]


class Steps:
    """Time that passes only when it is asked for, so that a claim from the beginning takes a second, and others none."""

    def __init__(self) -> None:
        self.time, self.step = 0.0, 1.0

    def __call__(self) -> float:
        self.time += self.step
        return self.time


@pytest.fixture
def postgres_store(clean_postgres: str) -> Iterator[JobStore]:
    with open_store(clean_postgres) as store:
        yield store


@pytest.fixture
def steps() -> Steps:
    return Steps()


@pytest.fixture
def claim(postgres_store: JobStore, steps: Steps) -> Claim:
    """Claims of a worker. The first five are from the beginning; as long as no time passes, all others go on."""
    operations = postgres_store.operations.for_worker()
    vars(operations.backend)["_cursors"] = ClaimCursors(steps)

    def claim(*queues: str, limit: int = 5) -> list[Job]:
        return run(operations.claim(queues or ("q",), limit, 600.0, "w", None))

    postgres_store.enqueue_many("warm-up", [{}] * 5)
    for _ in range(5):
        claim("warm-up", limit=1)
    steps.step = 0.0
    return claim


def test_claims_and_acks_do_not_read_the_dead_rows_again(
    postgres_store: JobStore, claim: Claim, steps: Steps
) -> None:
    dead, claims = 3_000, 100
    with psycopg.connect(postgres_store.dsn) as holder:
        holder.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        holder.execute("SELECT FROM conquiet_jobs")
        postgres_store.enqueue_many("q", [{}] * (dead + claims * 5))
        postgres_store.ack_many(claim(limit=dead))
        before = reads(postgres_store.dsn)
        for _ in range(claims):
            jobs = claim()
            assert len(jobs) == 5
            assert all(result.ok for result in postgres_store.ack_many(jobs))
        dsn = postgres_store.dsn
        postgres_store.close()  # then its connections report what they have read
        after = wait_for_statistics(dsn, before)
    assert after["conquiet_jobs_ready"] - before["conquiet_jobs_ready"] < dead + claims * 5 * 3
    assert after["conquiet_jobs_leased"] - before["conquiet_jobs_leased"] <= 5  # by the first five claims
    assert after["table"] - before["table"] < 100  # by the first claims, of a table that is almost empty


def test_onward_claims_keep_priorities_and_turns(postgres_store: JobStore, claim: Claim) -> None:
    for queue in ("a", "b"):
        postgres_store.enqueue_many(queue, [{}] * 10)
    assert [job.queue for job in claim("a", "b", limit=4)] == ["a", "b"] * 2
    postgres_store.enqueue("b", {}, priority=0)
    postgres_store.enqueue("a", {}, priority=9)
    claimed = claim("b", "a", limit=18)
    assert [(job.queue, job.priority) for job in claimed] == [("b", 0), *[("b", 5), ("a", 5)] * 8, ("a", 9)]


def test_what_is_behind_a_cursor_is_found_from_the_beginning(
    postgres_store: JobStore, claim: Claim, steps: Steps
) -> None:
    ids = postgres_store.enqueue_many("q", [{}] * 6)
    first = claim(limit=2)
    postgres_store.release(first[0])
    assert [job.id for job in claim(limit=2)] == ids[2:4]
    steps.time += 5.0
    assert [job.id for job in claim(limit=2)] == [ids[0], ids[4]]


def test_a_worker_without_work_looks_behind_its_cursors_at_once(
    postgres_store: JobStore, claim: Claim
) -> None:
    job_id = postgres_store.enqueue("q", {}).id
    postgres_store.release(claim()[0])
    assert [job.id for job in claim()] == [job_id]
    assert claim() == []


def test_claims_of_a_store_are_always_from_the_beginning(postgres_store: JobStore, claim: Claim) -> None:
    ids = postgres_store.enqueue_many("q", [{}] * 4)
    jobs = claim(limit=2)
    postgres_store.release(jobs[0])
    assert [job.id for job in postgres_store.claim("q", 2)] == [ids[0], ids[2]]
