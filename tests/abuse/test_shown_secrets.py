"""What handlers raise and what payloads contain stays out of logs, spans, reprs, errors and answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from conquiet.connectors import IterableConnector, JobConnector, LocalQueueConnector, StreamConnector
from conquiet.errors import MalformedEntryError, PayloadError
from conquiet.jobs import Job, JobContext, JobState, JobWorker, Nack, NewJob, open_store
from conquiet.local import LAST_EXCEPTIONS, PriorityDelayQueue, Worker
from conquiet.queue import QueueConfig, QueueConsumer, RedisStreamsQueue, connect
from conquiet.queue.transactions import NoTransactions
from conquiet.reconcile import create_app, open_database
from conquiet.task import Transaction
from conquiet.task.exceptions import TransactionException
from conquiet.task.mixins.consumer import ConsumerMixin
from conquiet.task.mixins.policies import ConsumerPolicy, ConsumerSteps, ProcessPolicy, RetryPolicy
from tests.abuse.handlers import chained, fail_in_a_chain
from tests.abuse.secrets import PASSWORD, VALUE, logged, unseen

SECRET = {"card": VALUE, "inner": [{"card": VALUE}]}
TWICE = ConsumerPolicy(steps=ConsumerSteps(process=ProcessPolicy(retry=RetryPolicy(max_attempts=2))))


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Everything logged by any library, from DEBUG on, with the extra fields of each record."""
    caplog.set_level(logging.DEBUG)
    yield
    for secret in (PASSWORD, VALUE):
        unseen(secret, logged(caplog))


@pytest.fixture(autouse=True)
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """All spans of the process."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    yield exporter
    for span in exporter.get_finished_spans():
        unseen(PASSWORD, span.to_json())
        unseen(VALUE, span.to_json())
    provider.shutdown()
    LAST_EXCEPTIONS.clear()


class Task(ConsumerMixin):
    """Fails with a chain full of passwords, as an error of its own or as one of the engine's."""

    def __init__(self, kind: type[Exception] | None) -> None:
        self.kind = kind
        self.seen: list[Any] = []

    def process_transaction(self, transaction: Transaction) -> Any:
        if self.kind is not None:
            raise chained(self.kind)
        return transaction.payload

    def handle_transaction_exception(self, transaction: Transaction, exception: Any) -> None:
        self.seen.append(exception)


@pytest.mark.parametrize("kind", [RuntimeError, TransactionException, TimeoutError, OSError])
def test_the_engine_hides_passwords_of_a_chain(kind: type[Exception], spans: InMemorySpanExporter) -> None:
    task = Task(kind)
    report = task.consume_transactions(IterableConnector([SECRET]), TWICE)
    assert report.failed == 1
    unseen(PASSWORD, report, *report.outcomes, *task.seen)
    for outcome in report.outcomes:
        assert outcome.exception is not None
        unseen(PASSWORD, outcome.exception)
    assert spans.get_finished_spans()


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_jobs_hide_passwords_of_a_chain(job_dsn: str, isolation: str) -> None:
    with open_store(job_dsn) as store:
        store.enqueue("q", {}, id="job", max_retries=0)
        JobWorker(store, fail_in_a_chain, queues="q", isolation=isolation).run_until_idle()
        job = store.get("job")
        assert job is not None
        assert job.state is JobState.FAILED
        assert "cannot connect to postgresql://app:***@db/shop" in (job.error or "")
        unseen(PASSWORD, job.error or "", *(str(attempt) for attempt in job.attempts), str(job.plain()))


def test_workers_of_the_local_queue_hide_passwords_of_a_chain(caplog: pytest.LogCaptureFixture) -> None:
    queue = PriorityDelayQueue()
    queue.enqueue(SECRET)
    queue.shutdown()
    with Worker(queue, fail_in_a_chain) as worker:
        assert worker.join(30)
    assert "cannot connect to postgresql://app:***@db/shop" in caplog.text
    unseen(PASSWORD, LAST_EXCEPTIONS)


def test_jobs_do_not_show_their_payload(job_dsn: str) -> None:
    with open_store(job_dsn) as store:
        places: list[Any] = [store.enqueue("q", SECRET, id="one", max_retries=0), NewJob(SECRET)]

        def handler(job: Job, context: JobContext) -> None:
            places.extend([job, context, job.lease, Nack(job)])
            raise LookupError("no such card")

        JobWorker(store, handler, queues="q").run_until_idle()
        places += [store.get("one"), store.list(), store.stats()]
        store.retry("one")
        report = Task(None).consume_transactions(JobConnector(store, "q"))
        assert report.succeeded == 1
        places.append(report)
        unseen(VALUE, *places, *map(str, places))
        for unfit in (float("nan"), b"x", "\ud800"):
            with pytest.raises(PayloadError) as refused:
                store.enqueue("q", {**SECRET, "unfit": unfit})
            unseen(VALUE, refused.value)
        assert places[2].lease is not None
        unseen(places[2].lease.token, *places[:2], places[2], places[4])


def test_messages_do_not_show_their_payload(redis_url: str) -> None:
    with connect(redis_url) as redis:
        queue = RedisStreamsQueue(redis, QueueConfig("orders", "billing", "alice", block_ms=50))
        queue.enqueue_many([SECRET] * 3)
        redis.xadd("orders", {"data": f'{{"card": "{VALUE}"'})
        redis.xadd("orders", {"data": f'["{VALUE}"]', "more": VALUE})
        with pytest.raises(MalformedEntryError) as malformed:
            queue.read(1_000, 10)
        error = malformed.value
        unseen(VALUE, error, *error.messages, *error.entries, error.messages)
        queue.ack_many([*error.messages, *error.entries])
        queue.enqueue(SECRET)
        report = Task(RuntimeError).consume_transactions(StreamConnector(queue))
        assert report.failed == 1
        unseen(VALUE, report, *report.outcomes, *(outcome.transaction for outcome in report.outcomes))
        consumer = QueueConsumer(redis, queue.config)
        queue.enqueue(SECRET)

        def handle(message: Any, _tx: object) -> None:
            unseen(VALUE, message)
            consumer.stop()

        consumer.run(handler=handle, db_factory=NoTransactions())


def test_items_do_not_show_their_job() -> None:
    queue = PriorityDelayQueue()
    item = queue.enqueue(SECRET)
    unseen(VALUE, item, queue, queue.snapshot())
    report = Task(None).consume_transactions(LocalQueueConnector(queue, poll_timeout=0))
    assert report.succeeded == 1
    unseen(VALUE, report)
    outcomes = iter([1, 0])  # one succeeds, one fails
    queue.enqueue(SECRET)
    queue.enqueue(SECRET)
    queue.shutdown()
    with Worker(queue, lambda job: 1 / next(outcomes)) as worker:
        assert worker.join(30)
    assert [failure["type"] for failure in LAST_EXCEPTIONS] == ["ZeroDivisionError"]


def test_the_intake_answers_without_the_values_it_refuses(report_dsn: str) -> None:
    good: dict[str, str | int] = {"affiliate_id": "ann", "platform": "sim", "post_id": "p1"}
    good |= dict.fromkeys(("claimed_views", "claimed_clicks", "claimed_conversions"), 1)
    sessions = open_database(report_dsn)
    app = create_app(sessions, PriorityDelayQueue(), platforms=["sim"])

    async def ask() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://intake") as client:
            bodies: list[Any] = [{**good, field: VALUE} for field in (*good, "submitted_at", "unknown")]
            bodies += [{**good, field: [VALUE]} for field in (*good, "submitted_at")]
            bodies += [{**good, field: {VALUE: VALUE}} for field in (*good, "submitted_at")]
            bodies += [{**good, field: f"{VALUE}\0"} for field in good]
            bodies += [[VALUE], VALUE, {"card": VALUE}]
            answers = [await client.post("/reports", json=body) for body in bodies]
            answers.append(await client.post("/reports", content=f'{{"card": "{VALUE}"'))
            long = {"Idempotency-Key": VALUE * 100}
            answers.append(await client.post("/reports", json=good, headers=long))
            answers.append(await client.get("/metrics"))
            return answers

    answers = asyncio.run(ask())
    taken = [answer for answer in answers if answer.status_code == 202]
    assert len(taken) == 2  # an affiliate and a post may have any name
    for answer in answers:
        unseen(VALUE, answer.text, dict(answer.headers))
    sessions.kw["bind"].dispose()
