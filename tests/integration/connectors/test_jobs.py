"""Leased jobs through the engine: settled as documented, kept alive meanwhile."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest

from conquiet.jobs import JobState, JobStore, open_store
from conquiet.task import OutcomeStatus, StopReason, Transaction
from conquiet.task.exceptions import ExceptionCategory, TransactionException
from tests.integration.connectors.variants import VARIANTS, Consumer, policy
from tests.integration.jobs.gate import Gate

pytestmark = pytest.mark.clause("E-34")

HEARTBEAT = "extended AS"  # occurs in the statement of a heartbeat, and in no other


def filled(dsn: str, count: int, **options: Any) -> list[str]:
    with open_store(dsn) as store:
        return store.enqueue_many("q", [{"n": n} for n in range(count)])


def states(store: JobStore, ids: list[str]) -> list[tuple[JobState, int]]:
    return [(job.state, job.retries) for job in map(store.get, ids) if job is not None]


def test_each_job_is_processed_once_and_acknowledged(dsn: str, variant: str) -> None:
    ids, seen = filled(dsn, 120), []
    report = Consumer(variant, lambda tx: seen.append(tx.id)).on_jobs(dsn, policy(batch=50, concurrency=8))
    assert sorted(seen) == sorted(ids)
    assert (report.succeeded, report.stop_reason) == (120, StopReason.DRAINED)
    with open_store(dsn) as store:
        assert store.stats()["q"].succeeded == 120


def test_failures_are_nacked_by_their_category(dsn: str, variant: str) -> None:
    def process(tx: Transaction) -> None:
        match tx.payload["n"]:
            case 1:
                raise TransactionException("no such account", ExceptionCategory.BUSINESS)
            case 2:
                raise ValueError("broken")

    ids = filled(dsn, 3)
    report = Consumer(variant, process).on_jobs(dsn, policy(limit=3))
    assert (report.succeeded, report.failed) == (1, 2)
    with open_store(dsn) as store:
        assert states(store, ids) == [
            (JobState.SUCCEEDED, 0),
            (JobState.FAILED, 0),  # not retryable
            (JobState.READY, 1),
        ]
        (attempt,) = store.get(ids[1]).attempts
        assert (attempt.category, "no such account" in attempt.error_message) == ("BUSINESS", True)


def test_a_business_failure_whose_handler_fails_is_tried_again(dsn: str, variant: str) -> None:
    def process(tx: Transaction) -> None:
        raise TransactionException("no", ExceptionCategory.BUSINESS)

    def handle(tx: Transaction, exception: Any) -> None:
        raise TransactionException("no again", ExceptionCategory.BUSINESS)

    ids = filled(dsn, 1)
    Consumer(variant, process, handle).on_jobs(dsn, policy(limit=1))
    with open_store(dsn) as store:
        assert states(store, ids) == [(JobState.READY, 1)]


def test_a_transaction_longer_than_its_lease_keeps_it(dsn: str, variant: str) -> None:
    ids = filled(dsn, 3)
    consumer = Consumer(variant, seconds=lambda tx: 0.8 if tx.payload["n"] == 0 else 0.3)
    report = consumer.on_jobs(dsn, policy(batch=3, concurrency=1), lease_ttl=0.3)
    assert (report.succeeded, report.unsettled) == (3, 0)  # the waiting ones were kept alive too
    with open_store(dsn) as store:
        assert [[a.outcome for a in store.get(i).attempts] for i in ids] == [["succeeded"]] * 3


def test_a_lost_lease_makes_the_outcome_unsettled(dsn: str, variant: str) -> None:
    (id_,) = filled(dsn, 1)

    def process(tx: Transaction) -> None:
        with open_store(dsn) as other:  # as an operator, or a worker after a long pause, would
            other.release(tx.metadata["job"])
            (job,) = other.claim("q", lease_ttl=60.0, worker="somebody else")
            assert job.id == tx.id

    report = Consumer(variant, process).on_jobs(dsn, policy(limit=1))
    assert (report.fetched, report.succeeded, report.unsettled, report.processed) == (1, 0, 1, 1)
    assert report.outcomes[0].status is OutcomeStatus.UNSETTLED
    with open_store(dsn) as store:
        job = store.get(id_)
        assert job is not None
        assert job.lease is not None
        assert (job.state, job.lease.worker) == (JobState.IN_FLIGHT, "somebody else")


def test_after_stop_what_was_not_begun_is_ready_again(dsn: str, variant: str) -> None:
    ids = filled(dsn, 6)
    consumer = Consumer(variant)

    def process(tx: Transaction) -> None:
        if tx.payload["n"] == 1:
            consumer.task.stop()

    consumer.process = process
    report = consumer.on_jobs(dsn, policy(batch=6, concurrency=1), lease_ttl=30.0)
    assert (report.succeeded, report.unsettled, report.stop_reason) == (2, 4, StopReason.STOPPED)
    with open_store(dsn) as store:
        assert [state for state, _ in states(store, ids)] == [JobState.SUCCEEDED] * 2 + [JobState.READY] * 4


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_the_loop_timeout_cut_off_runs_again_after_its_lease(postgres_dsn: str, variant: str) -> None:
    ids = filled(postgres_dsn, 2)
    consumer = Consumer(variant, seconds=lambda tx: 1.5 if tx.payload["n"] == 0 else 0.0)
    report = consumer.on_jobs(postgres_dsn, policy(batch=2, concurrency=2, timeout=0.3), lease_ttl=0.4)
    assert (report.succeeded, report.unsettled, report.stop_reason) == (1, 1, StopReason.LOOP_TIMEOUT)
    with open_store(postgres_dsn) as store:
        deadline = time.monotonic() + 5
        while not (jobs := store.claim("q")):
            assert time.monotonic() < deadline, "it is still held"
        assert [job.id for job in jobs] == ids[:1]


@pytest.mark.clause("J-23")
def test_an_outage_is_said_once_and_the_leases_are_kept_after_it(
    postgres_dsn: str, variant: str, caplog: pytest.LogCaptureFixture
) -> None:
    (job_id,) = filled(postgres_dsn, 1)
    caplog.set_level(logging.WARNING, "conquiet")
    with Gate(postgres_dsn, HEARTBEAT, "statement") as gate:
        strikes = [gate.struck, *(gate.strike(HEARTBEAT, "command").done for _ in range(2))]
        # Longer than its lease: it can be acknowledged only if the lease was extended after the outage.
        consumer = Consumer(variant, seconds=lambda transaction: 7.0)
        report = consumer.on_jobs(gate.dsn, policy(limit=1), lease_ttl=6.0)
    assert all(struck.is_set() for struck in strikes)
    assert (report.succeeded, report.unsettled) == (1, 0)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert said[0].startswith("the job store does not answer; retrying until it does: ")
    assert said[1].startswith("the job store answers again, after ")
    with open_store(postgres_dsn) as store:
        (attempt,) = store.get(job_id).attempts
        assert attempt.outcome == "succeeded"
