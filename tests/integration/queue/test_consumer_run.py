"""run: fetch, handler, commit, ack, in that order, and what happens when one of them fails."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from conquiet.embedded import RedisServer
from conquiet.errors import AsyncCallableError
from conquiet.queue import (
    MalformedEntryError,
    NoTransactions,
    QueueConfigError,
    QueueConnectionError,
    QueueConsumer,
    connect,
)
from tests.integration.queue.gate import Gate
from tests.integration.queue.monitor import Monitor
from tests.integration.queue.recording import Recording
from tests.integration.queue.stream import Stream
from tests.integration.queue.variants import settings


class HandlerError(Exception):
    pass


class CommitError(Exception):
    pass


class RollbackError(Exception):
    pass


@pytest.mark.clause("C-01", "C-12")
def test_fetch_handler_commit_ack_one_message_at_a_time(
    queues: Any, stream: Stream, monitor: Monitor
) -> None:
    consumer = queues.consumer()
    ids = stream.add('{"n": 1}', '{"n": 2}', '{"n": 3}')
    recording = Recording(stream.raw, commit=lambda: len(recording.events) == 9 and consumer.stop())
    monitor.commands()
    consumer.run(handler=recording.handle, db_factory=recording)
    timeline = [words[1] if words[0] == "ECHO" else f"{words[0]} {words[-1]}" for words in monitor.commands()]
    assert timeline == [
        step
        for entry_id in ids
        for step in ("XREADGROUP >", "begin", f"handler {entry_id}", "commit", f"XACK {entry_id}")
    ]
    assert stream.pending() == {}


@pytest.mark.clause("C-01")
def test_the_handler_gets_the_message_and_the_transaction_that_is_committed(
    queues: Any, stream: Stream
) -> None:
    consumer = queues.consumer()
    stream.add('{"n": 1}')
    seen: list[Any] = []

    def handle(message: Any, tx: Any) -> None:
        seen.append((message.payload, tx.recording is recording, stream.pending()))
        consumer.stop()

    recording = Recording()
    consumer.run(handler=handle, db_factory=recording)
    assert [(payload, right, len(pending)) for payload, right, pending in seen] == [({"n": 1}, True, 1)]
    assert recording.events == ["begin", "commit"]


FAILURES = [
    Exception("a plain one"),
    HandlerError(),
    ValueError(),
    MalformedEntryError("not of this queue", [], []),
    KeyboardInterrupt(),
    SystemExit(3),
]


@pytest.mark.clause("C-02", "C-03", "C-21")
@pytest.mark.parametrize("rollback", [None, RollbackError("no rollback either")], ids=["", "rollback fails"])
@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
def test_a_handler_that_fails_is_rolled_back_and_its_exception_raised(
    queues: Any, stream: Stream, monitor: Monitor, failure: BaseException, rollback: Exception | None
) -> None:
    consumer = queues.consumer()
    ids = stream.add('{"n": 1}', '{"n": 2}')
    more: dict[str, Any] = {"rollback": rollback} if rollback else {}
    recording = Recording(handler=failure, **more)
    monitor.commands()
    with pytest.raises(type(failure)) as caught:
        consumer.run(handler=recording.handle, db_factory=recording)
    assert caught.value is failure
    assert recording.events == ["begin", f"handler {ids[0]}", "rollback"]
    assert monitor.names() == ["XREADGROUP"]  # no ack, and no second read
    assert stream.pending() == {ids[0]: "alice"}
    if rollback:
        assert any("the rollback failed too: RollbackError" in note for note in failure.__notes__)


@pytest.mark.clause("C-02")
def test_a_stop_iteration_of_the_handler_is_not_taken_for_the_end(queues: Any, stream: Stream) -> None:
    """Python turns a StopIteration that leaves a coroutine or generator into a RuntimeError, with it as the cause."""
    consumer = queues.consumer()
    (entry_id,) = stream.add("{}")
    failure = StopIteration("next() found nothing")
    recording = Recording(handler=failure)
    with pytest.raises((StopIteration, RuntimeError)) as caught:
        consumer.run(handler=recording.handle, db_factory=recording)
    assert failure in (caught.value, caught.value.__cause__)
    assert recording.events == ["begin", f"handler {entry_id}", "rollback"]
    assert stream.pending() == {entry_id: "alice"}


@pytest.mark.clause("C-03", "C-04", "C-21")
@pytest.mark.parametrize("rollback", [None, RollbackError("no rollback either")], ids=["", "rollback fails"])
@pytest.mark.parametrize(
    "failure", [CommitError(), KeyboardInterrupt(), SystemExit(3)], ids=lambda f: type(f).__name__
)
def test_a_commit_that_fails_is_rolled_back_and_nothing_is_acked(
    queues: Any, stream: Stream, monitor: Monitor, failure: BaseException, rollback: Exception | None
) -> None:
    consumer = queues.consumer()
    ids = stream.add('{"n": 1}', '{"n": 2}')
    more: dict[str, Any] = {"rollback": rollback} if rollback else {}
    recording = Recording(commit=failure, **more)
    monitor.commands()
    with pytest.raises(type(failure)) as caught:
        consumer.run(handler=recording.handle, db_factory=recording)
    assert caught.value is failure
    assert recording.events == ["begin", f"handler {ids[0]}", "commit", "rollback"]
    assert monitor.names() == ["XREADGROUP"]
    assert stream.pending() == {ids[0]: "alice"}


@pytest.mark.clause("C-02")
def test_a_begin_that_fails_is_raised_and_nothing_is_handled(queues: Any, stream: Stream) -> None:
    consumer = queues.consumer()
    (entry_id,) = stream.add("{}")
    recording = Recording(begin=ConnectionError("no database"))
    with pytest.raises(ConnectionError, match="no database"):
        consumer.run(handler=recording.handle, db_factory=recording)
    assert recording.events == ["begin"]
    assert stream.pending() == {entry_id: "alice"}


@pytest.mark.clause("C-02")
def test_after_a_failure_the_same_consumer_goes_on_with_the_next_message(queues: Any, stream: Stream) -> None:
    consumer = queues.consumer()
    ids = stream.add("{}", "{}")
    failing = Recording(handler=HandlerError())
    with pytest.raises(HandlerError):
        consumer.run(handler=failing.handle, db_factory=failing)
    recording = Recording(commit=consumer.stop)
    consumer.run(handler=recording.handle, db_factory=recording)
    assert recording.events == ["begin", f"handler {ids[1]}", "commit"]
    assert stream.pending() == {ids[0]: "alice"}  # it is not retried by itself


@pytest.mark.clause("C-05")
def test_an_ack_that_fails_after_the_commit_is_raised_and_the_message_comes_again(
    queues: Any, private: RedisServer
) -> None:
    consumer = queues.consumer(client=queues.client(private.url))
    entry_id = queues.queue(client=queues.client(private.url)).enqueue({"n": 1})
    recording = Recording(commit=private.kill)
    with pytest.raises(QueueConnectionError, match=f"ack of entry {entry_id}"):
        consumer.run(handler=recording.handle, db_factory=recording)
    assert recording.events == [
        "begin",
        f"handler {entry_id}",
        "commit",
    ]  # committed work is not rolled back
    private.start()
    bob = queues.queue("bob", client=queues.client(private.url))
    assert [(m.id, m.payload) for m in bob.claim_stale(0)] == [(entry_id, {"n": 1})]


@pytest.mark.clause("C-05")
@pytest.mark.parametrize("strike", ["lose", "lose_reply_to"])
def test_a_connection_that_breaks_at_the_ack(
    queues: Any, stream: Stream, gate: Gate, monitor: Monitor, strike: str
) -> None:
    consumer = queues.consumer(client=queues.client(gate.url))
    ids = stream.add("{}", "{}")
    getattr(gate, strike)("XACK")
    recording = Recording()
    monitor.commands()
    with pytest.raises(QueueConnectionError):
        consumer.run(handler=recording.handle, db_factory=recording)
    assert recording.events == ["begin", f"handler {ids[0]}", "commit"]
    assert len(monitor.commands("XACK")) == (0 if strike == "lose" else 1)
    assert list(stream.pending()) == (ids[:1] if strike == "lose" else [])


@pytest.mark.clause("C-19")
def test_there_is_no_thread_no_task_and_no_buffer_beside_the_handler(queues: Any, stream: Stream) -> None:
    consumer = queues.consumer()
    ids = stream.add("{}", "{}", "{}")
    threads = set(threading.enumerate())
    seen: list[Any] = []

    def handle(message: Any, tx: Any) -> None:
        tasks = len(asyncio.all_tasks()) if queues.name == "async" else 1
        seen.append((message.id, list(stream.pending()), set(threading.enumerate()) - threads, tasks))
        if len(seen) == 3:
            consumer.stop()

    consumer.run(handler=handle, db_factory=Recording())
    assert seen == [
        (entry_id, [entry_id], set(), 1) for entry_id in ids
    ]  # pending: the current one, no other
    assert set(threading.enumerate()) <= threads


async def coroutine_handler(message: Any, tx: Any) -> None:
    raise AssertionError("never called")


@pytest.mark.parametrize("argument", ["handler", "on_malformed"])
@pytest.mark.parametrize("method", ["run", "run_recovery"])
def test_a_coroutine_function_is_refused_by_the_sync_consumer(
    redis_url: str, monitor: Monitor, method: str, argument: str
) -> None:
    with connect(redis_url) as client:
        consumer = QueueConsumer(client, settings())
        monitor.commands()
        arguments = {"handler": lambda message, tx: None, argument: coroutine_handler}
        with pytest.raises(
            QueueConfigError, match="coroutine_handler is a coroutine function: use AsyncQueue"
        ):
            getattr(consumer, method)(**arguments, db_factory=NoTransactions())
    assert monitor.commands() == []


class CoroutineCall:
    async def __call__(self, message: Any, tx: Any) -> None: ...


class CoroutineTransactions:
    async def begin(self) -> None: ...


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"handler": None}, "handler must be a function, not NoneType"),
        ({"on_malformed": "no function"}, "on_malformed must be a function, not str"),
        ({"db_factory": None}, r"db_factory needs a method begin\(\), which NoneType does not have"),
        ({"handler": CoroutineCall()}, "CoroutineCall is a coroutine function"),
        ({"db_factory": CoroutineTransactions()}, "CoroutineTransactions.begin is a coroutine function"),
    ],
)
@pytest.mark.parametrize("method", ["run", "run_recovery"])
def test_what_would_fail_at_every_message_is_refused_before_one_is_read(
    redis_url: str, monitor: Monitor, method: str, wrong: dict[str, Any], told: str
) -> None:
    with connect(redis_url) as client:
        consumer = QueueConsumer(client, settings())
        monitor.commands()
        arguments = {"handler": lambda message, tx: None, "db_factory": NoTransactions(), **wrong}
        with pytest.raises(QueueConfigError, match=told):
            getattr(consumer, method)(**arguments)
    assert monitor.commands() == []


def test_a_handler_that_gives_a_coroutine_to_the_sync_consumer_is_no_success(
    redis_url: str, stream: Stream
) -> None:
    """What cannot be seen beforehand is refused when it happens: nothing is committed, nothing acknowledged."""
    with connect(redis_url) as client:
        consumer = QueueConsumer(client, settings())
        (entry_id,) = stream.add("{}")
        recording = Recording()
        unseen: Any = lambda *arguments: coroutine_handler(*arguments)  # noqa: E731 - no coroutine function itself
        with pytest.raises(AsyncCallableError, match="returned a coroutine"):
            consumer.run(handler=unseen, db_factory=recording)
        assert recording.events == ["begin", "rollback"]
        assert stream.pending() == {entry_id: "alice"}
