"""Waiting and processing times, from random attempts and from real job stores."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from conquiet.errors import JobConfigError
from conquiet.jobs import JobStore, RetrySchedule, open_store
from conquiet.reconcile.report import job_history as analytics_jobs
from conquiet.reconcile.report.job_history import (
    ATTEMPT_OUTCOMES,
    ATTEMPTS,
    JOB_TIMES,
    attempt_outcomes,
    job_attempts,
    job_times,
)
from conquiet.testing import ManualClock
from tests.spark.reconcile.report import drawn
from tests.spark.reconcile.report.test_outcomes import collected, in_order

pytestmark = pytest.mark.clause("P-13")

AT_ONCE = RetrySchedule(max_retries=3, base_seconds=0.0, max_seconds=0.0)


@pytest.mark.parametrize("jobs", [1, 10, 99, 3_000])
def test_percentiles_are_exact(spark: SparkSession, jobs: int) -> None:
    rows = drawn.draw_attempts(seed=jobs, jobs=jobs)
    attempts = drawn.frame(spark, rows, drawn.ATTEMPTS)
    assert collected(job_times(attempts), JOB_TIMES) == in_order(drawn.times(rows))


def test_outcomes_of_attempts_are_counted(spark: SparkSession) -> None:
    rows = drawn.draw_attempts(seed=5, jobs=200)
    found = collected(attempt_outcomes(drawn.frame(spark, rows, drawn.ATTEMPTS)), ATTEMPT_OUTCOMES)
    assert {(row["queue"], row["outcome"]): row["attempts"] for row in found} == {
        key: sum((row["queue"], row["outcome"]) == key for row in rows)
        for key in {(row["queue"], row["outcome"]) for row in rows}
    }


def worked(store: JobStore, clock: ManualClock) -> None:
    """Ten jobs: number n waits n seconds and takes 10 n ms; one fails first, one is given back, one is left."""
    store.enqueue_many("mail", [{"n": n} for n in range(10)])
    for n in range(9):
        clock.advance(1.0)
        (job,) = store.claim("mail", lease_ttl=60.0)
        if n == 4 and not job.attempts:
            clock.advance(0.5)
            store.nack(job, "no")
            (job,) = store.claim("mail", lease_ttl=60.0)
        if n == 6 and not job.attempts:
            store.release(job)
            (job,) = store.claim("mail", lease_ttl=60.0)
        clock.advance(0.01 * job.payload["n"])
        store.ack(job)


def test_the_history_of_a_store_becomes_a_table(spark: SparkSession, tmp_path: Path) -> None:
    clock = ManualClock()
    with open_store(f"sqlite:///{tmp_path}/jobs.db", retry=AT_ONCE, clock=clock) as store:
        worked(store, clock)
        expected = [
            {"job_id": job.id, "queue": "mail", "number": one.number, "enqueued_at": job.enqueued_at}
            | {"started_at": one.started_at, "ended_at": one.ended_at, "outcome": one.outcome}
            for job in store.list()
            for one in job.attempts
        ]
        store.enqueue("other", {})
        attempts = job_attempts(spark, store, f"{tmp_path}/attempts", queue="mail", page=3)
        with pytest.raises(JobConfigError, match="attempts exists: give a folder that does not"):
            job_attempts(spark, store, f"{tmp_path}/attempts")
        with pytest.raises(JobConfigError, match="page"):
            job_attempts(spark, store, f"{tmp_path}/more", page=0)
    assert dict(attempts.dtypes) == ATTEMPTS
    assert len(expected) == 11
    assert attempts.count() == 11
    found = collected(job_times(attempts), JOB_TIMES)
    assert found == in_order(drawn.times(expected))
    by_measure = {row["measure"]: row for row in found}
    assert by_measure["first_wait"]["attempts"] == 9
    assert by_measure["processing"] == {
        "queue": "mail", "measure": "processing", "attempts": 10, "p50": 0.04, "p90": 0.08, "p99": 0.5, "max": 0.5
    }  # fmt: skip
    ends = {row.outcome: row.attempts for row in attempt_outcomes(attempts).collect()}
    assert ends == {"succeeded": 9, "failed": 1, "released": 1}


def test_a_store_on_postgresql_is_read_too(spark: SparkSession, postgres_dsn: str, tmp_path: Path) -> None:
    with open_store(postgres_dsn) as store:
        store.enqueue_many("mail", [{"n": n} for n in range(7)])
        store.ack_many(store.claim("mail", limit=6))
        attempts = job_attempts(spark, store, f"{tmp_path}/attempts", page=4)
    assert attempts.count() == 6
    for row in job_times(attempts).collect():
        assert row.attempts == 6
        assert 0 <= row.p50 <= row.p90 <= row.p99 == row.max < 100


def test_an_empty_store_gives_an_empty_table(spark: SparkSession, tmp_path: Path) -> None:
    with open_store("memory://") as store:
        attempts = job_attempts(spark, store, f"{tmp_path}/attempts")
    assert dict(attempts.dtypes) == ATTEMPTS
    assert job_times(attempts).collect() == []


def test_jobs_that_are_removed_while_pages_are_read_hide_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(analytics_jobs, "_AT_ONCE", 1)  # a list for every page
    clock = ManualClock()
    with open_store(f"sqlite:///{tmp_path}/jobs.db", clock=clock) as store:
        ids = store.enqueue_many("mail", [{} for _ in range(20)])
        jobs = store.claim("mail", limit=20)
        store.ack_many(jobs[:3])
        clock.advance(100.0)
        jobs = store.claim("mail", limit=20)  # their leases have expired
        store.ack_many(jobs)
        seen: set[str] = set()
        for page in analytics_jobs._chunks(store, None, 4):
            assert len(page) <= 8  # four jobs with two attempts at most
            if not seen:
                assert store.prune(50.0) == 3  # the first three
                store.enqueue("mail", {})
            seen |= {row[0] for row in page}
    assert seen == set(ids[3:])


def test_attempts_without_a_column_are_refused(spark: SparkSession) -> None:
    attempts = drawn.frame(spark, [], drawn.ATTEMPTS)
    with pytest.raises(Exception, match="attempts has no column ended_at; it has: job_id, "):
        job_times(attempts.drop("ended_at"))
