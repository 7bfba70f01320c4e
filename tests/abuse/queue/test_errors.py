"""The corpus as errors that handlers raise and as names of workers: the worker survives, and neighbours are served."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

from conquiet.connectors import StreamConnector
from conquiet.errors import ConquietError, JobConfigError
from conquiet.jobs import Job, JobWorker, open_store
from conquiet.queue import QueueConfig, QueueConsumer, QueueMessage, RedisStreamsQueue, connect
from conquiet.queue.transactions import NoTransactions
from conquiet.task import StopReason, Transaction
from conquiet.task.exceptions import ExceptionCategory, TransactionException
from conquiet.task.mixins.consumer import ConsumerMixin
from conquiet.task.mixins.policies import BatchPolicy, ConcurrencyPolicy, ConsumerLoopPolicy, ConsumerPolicy
from tests.abuse.corpus import corpus
from tests.abuse.secrets import logged

CONFIG = QueueConfig("orders", "billing", "alice", block_ms=50, claim_idle_ms=1)
LOOP = ConsumerLoopPolicy(batch=BatchPolicy(size=100), concurrency=ConcurrencyPolicy(value=2))


@pytest.fixture
def redis(redis_url: str) -> Iterator[Redis]:
    with connect(redis_url) as client:
        yield client
        assert client.exists("pwned") == 0


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Everything logged can be formatted, with its traceback and its extra fields."""
    caplog.set_level(logging.DEBUG)
    yield
    logged(caplog)


class Task(ConsumerMixin):
    """Raises the input named by the message's number: as a bug, or as a final refusal."""

    def __init__(self) -> None:
        self.served: set[int] = set()
        self.handled: dict[int, str] = {}

    def process_transaction(self, transaction: Transaction) -> None:
        number, kind = transaction.payload["number"], transaction.payload["kind"]
        if kind == "good":
            self.served.add(number)
        elif kind == "bug":
            raise RuntimeError(corpus()[number].text)
        else:
            raise TransactionException(corpus()[number].text, ExceptionCategory.BUSINESS)

    def handle_transaction_exception(self, transaction: Transaction, exception: Any) -> None:
        self.handled[transaction.payload["number"]] = str(exception)


def test_the_engine_survives_every_error_and_serves_the_neighbours(redis: Redis) -> None:
    queue, task = RedisStreamsQueue(redis, CONFIG), Task()
    numbers = range(len(corpus()))
    for kind in ("bug", "refusal"):
        queue.enqueue_many(
            [{"number": number, "kind": which} for number in numbers for which in ("good", kind)]
        )
        task.served.clear()
        task.handled.clear()
        report = task.consume_transactions(StreamConnector(queue), ConsumerPolicy(loop=LOOP))
        assert task.served == set(numbers)
        assert set(task.handled) == set(numbers)
        assert (report.stop_reason, report.succeeded, report.failed) == (
            StopReason.DRAINED,
            len(numbers),
            len(numbers),
        )
        # After a bug the message stays pending until the bug is fixed; a final refusal acknowledges it.
        left = len(numbers) if kind == "bug" else 0
        assert queue.backlog_stats().pending == left
        queue.ack_many(queue.claim_stale(0, 10_000) if left else [])


def test_a_consumer_hands_on_every_error_as_it_is_and_goes_on(redis: Redis) -> None:
    consumer = QueueConsumer(redis, CONFIG)
    queue = RedisStreamsQueue(redis, CONFIG)
    queue.enqueue_many([{"number": number} for number in range(len(corpus()))])
    queue.enqueue({"number": "last"})
    raised: list[int] = []

    def handle(message: QueueMessage, _tx: object) -> None:
        number = message.payload["number"]
        if number == "last":
            consumer.stop()
            return
        raised.append(number)
        raise RuntimeError(corpus()[number].text)

    for one in corpus():
        with pytest.raises(RuntimeError) as error:
            consumer.run(handler=handle, db_factory=NoTransactions())
        assert error.value.args == (one.text,)
    consumer.run(handler=handle, db_factory=NoTransactions())
    assert raised == list(range(len(corpus())))
    assert queue.backlog_stats().pending == len(corpus())


def test_every_input_is_a_workers_name_or_is_refused() -> None:
    with open_store("memory://") as store:
        seen: dict[str, str] = {}

        def handle(job: Job) -> None:
            assert job.lease is not None
            seen[job.id] = job.lease.worker

        for one in corpus():
            if not one.is_name:
                if one.text:  # "" means the default name
                    with pytest.raises(JobConfigError, match="worker must"):
                        JobWorker(store, handle, queues="q", worker=one.text)
                continue
            store.enqueue("q", {}, id=one.name)
            JobWorker(store, handle, queues="q", worker=one.text).run_until_idle()
        assert seen == {one.name: one.text for one in corpus() if one.is_name}


def test_every_input_is_an_entry_to_acknowledge_or_is_refused(redis: Redis) -> None:
    """Ids come from Redis. A message that the caller made up must at worst cause one of conquiet's errors."""
    queue = RedisStreamsQueue(redis, CONFIG)
    for one in corpus():
        made_up = QueueMessage(one.text, {}, CONFIG.stream_key, CONFIG.consumer_group)
        with pytest.raises(ConquietError) as error:
            queue.ack_if_owner(made_up)
        assert str(error.value).isprintable()
        if one.text not in ("0", "0-0", "9" * 400):  # for these Redis answers: not pending
            with pytest.raises(ConquietError):
                queue.ack(made_up)
    assert redis.keys() == [b"orders"]
