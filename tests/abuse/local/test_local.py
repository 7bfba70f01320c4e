"""The corpus against what runs in this process: the priority queue, its workers, and the Consumer Engine."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from conquiet.connectors import IterableConnector, JobConnector, LocalQueueConnector
from conquiet.errors import ConquietError, UnknownPriorityError
from conquiet.jobs import JobState, NewJob, open_store
from conquiet.local import LAST_EXCEPTIONS, PriorityDelayQueue, Worker
from conquiet.task import OutcomeStatus, Transaction
from conquiet.task.exceptions import ExceptionCategory, TransactionException
from conquiet.task.mixins.consumer import ConsumerMixin
from conquiet.task.mixins.policies import BatchPolicy, ConsumerLoopPolicy, ConsumerPolicy
from tests.abuse.corpus import corpus, huge

POLICY = ConsumerPolicy(loop=ConsumerLoopPolicy(batch=BatchPolicy(size=100)))
GOOD = {"good": True}


class Spiteful(Exception):
    """An error that raises again when it is inspected."""

    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


class SpitefulJob:
    """A job that raises when it is inspected."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __repr__(self) -> str:
        raise RuntimeError("repr")


def test_a_worker_thread_survives_every_job_and_every_error(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "conquiet")
    queue, done = PriorityDelayQueue(), list[Any]()

    def handler(job: Any) -> None:
        if isinstance(job, BaseException):
            raise job
        done.append(job)

    texts = [one.text for one in corpus()]
    errors = [RuntimeError(text) for text in [*texts, "x" * len(huge())]]
    worst = [Spiteful(), SystemExit(1), KeyboardInterrupt(), GeneratorExit(), RecursionError(), MemoryError()]
    jobs = [*texts, *({"value": text} for text in texts), SpitefulJob(), None, float("nan"), huge()]
    worker = Worker(queue, handler)
    queue.enqueue("first")
    for job in [*jobs, *errors, *worst]:
        queue.enqueue(job)
    queue.enqueue("last")
    queue.shutdown()
    with worker:
        assert worker.join(60)
    assert [done[0], *done[1:-1], done[-1]] == ["first", *jobs, "last"]
    failures = [record for record in caplog.records if record.getMessage().startswith("job failed")]
    assert len(failures) == len(errors) + len(worst)
    assert max(len(record.getMessage()) for record in failures) < 20_000
    LAST_EXCEPTIONS.clear()


def test_a_job_that_cannot_be_looked_at_and_fails_does_not_end_the_worker() -> None:
    queue, done = PriorityDelayQueue(), list[Any]()

    def handler(job: Any) -> None:
        if isinstance(job, SpitefulJob):
            raise Spiteful
        done.append(job)

    queue.enqueue("first")
    queue.enqueue(SpitefulJob())
    queue.enqueue("last")
    queue.shutdown()
    with Worker(queue, handler) as worker:
        assert worker.join(60)
    assert done == ["first", "last"]
    LAST_EXCEPTIONS.clear()


def test_every_input_is_refused_as_a_priority_on_one_line() -> None:
    queue = PriorityDelayQueue()
    for one in corpus():
        with pytest.raises(UnknownPriorityError) as refused:
            queue.enqueue(GOOD, priority=one.text)
        assert str(refused.value).isprintable()
    for value in (float("nan"), float("inf"), "1", b"1", {1: 1}):
        with pytest.raises(ConquietError):
            queue.enqueue(GOOD, delay_seconds=value)  # type: ignore[arg-type]
    assert queue.depth == 0


class Task(ConsumerMixin):
    """Raises the text of its payload; the number of the transaction chooses the kind of error."""

    def __init__(self, provider: TracerProvider) -> None:
        self.tracer_provider = provider
        self.served: list[Any] = []
        self.handled: list[str] = []

    def process_transaction(self, transaction: Transaction) -> None:
        payload = transaction.payload
        if payload == GOOD:
            self.served.append(transaction.id)
        elif payload.get("business"):
            raise TransactionException(payload["value"], ExceptionCategory.BUSINESS)
        else:
            raise RuntimeError(payload["value"])

    def handle_transaction_exception(self, transaction: Transaction, exception: Any) -> None:
        self.handled.append(transaction.id)


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def task(exporter: InMemorySpanExporter) -> Task:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return Task(provider)


def payloads() -> list[dict[str, Any]]:
    texts = [one.text for one in corpus()]
    hostile = [{"value": text, "business": number % 2 == 0} for number, text in enumerate(texts)]
    return [GOOD, *hostile, GOOD]


@pytest.mark.parametrize("connected", ["iterable", "local"])
def test_the_engine_survives_every_payload_and_every_error(
    connected: str, task: Task, exporter: InMemorySpanExporter
) -> None:
    given: list[Any] = payloads()
    connector: Any = IterableConnector(given)
    if connected == "local":
        queue = PriorityDelayQueue()
        for payload in given:
            queue.enqueue(payload)
        connector = LocalQueueConnector(queue, poll_timeout=0)
    report = task.consume_transactions(connector, POLICY)
    assert (report.fetched, report.succeeded, report.failed) == (len(given), 2, len(given) - 2)
    assert report.by_category == {"BUSINESS": len(corpus()) // 2, "SYSTEM": len(corpus()) // 2}
    assert len(task.handled) == len(corpus())
    assert {outcome.status for outcome in report.outcomes} == {OutcomeStatus.FAILED}
    spans = exporter.get_finished_spans()
    assert len(spans) >= len(given)
    messages = [str((span.attributes or {}).get("exception.message", "")) for span in spans]
    assert max(len(message.encode()) for message in messages) <= 1_024


def test_jobs_under_the_engine_are_failed_with_the_reason(job_dsn: str, task: Task) -> None:
    storable = [one for one in corpus() if one.is_unicode]
    with open_store(job_dsn) as store:
        store.enqueue("q", GOOD, id="first")
        store.enqueue_many("q", [NewJob({"value": one.text, "business": True}, one.name) for one in storable])
        store.enqueue("q", GOOD, id="last")
        report = task.consume_transactions(JobConnector(store, "q", lease_ttl=30.0), POLICY)
        assert (report.succeeded, report.failed) == (2, len(storable))
        assert task.served == ["first", "last"]
        for job in store.list(state=JobState.FAILED, limit=10_000):
            assert job.attempts[0].category == "BUSINESS"
            assert job.error is not None
        assert store.stats("q")["q"].failed == len(storable)


def test_every_input_is_the_id_of_a_transaction(task: Task) -> None:
    ids = [one.text for one in corpus()]
    for id in ids:
        outcome = task.start_processing(Transaction(id, GOOD), POLICY)
        assert outcome.status is OutcomeStatus.SUCCEEDED
        assert repr(outcome)
        assert repr(Transaction(id, GOOD)).isprintable()
    assert task.served == ids
