"""run: fetch, handler, commit, ack, in that order, and what happens when one of them fails."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest

from conquiet.embedded import RedisServer
from conquiet.errors import AsyncCallableError
from conquiet.queue import (
    LeaseLostError,
    MalformedEntryError,
    NoTransactions,
    QueueConfigError,
    QueueConnectionError,
    QueueConsumer,
    connect,
)
from tests.integration.queue.gate import Gate
from tests.integration.queue.monitor import Monitor
from tests.integration.queue.recording import AsyncRecordedTx, AsyncRecording, Recording
from tests.integration.queue.stream import Stream
from tests.integration.queue.variants import STREAM, Blocking, settings


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
    GeneratorExit("of a generator that the handler uses"),
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
    """Python turns a StopIteration that leaves a coroutine into a RuntimeError, with it as the cause."""
    consumer = queues.consumer()
    (entry_id,) = stream.add("{}")
    failure = StopIteration("next() found nothing")
    recording = Recording(handler=failure)
    raised = StopIteration if queues.name == "sync" else RuntimeError
    with pytest.raises(raised) as caught:
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
        ({"db_factory": NoTransactions}, r"NoTransactions.begin .*called as begin\(\).*NoTransactions\(…\)"),
        ({"handler": lambda: None}, r"called as handler\(message, tx\): too many positional arguments"),
        ({"handler": lambda message, tx, more: None}, "missing a required argument: 'more'"),
        ({"handler": lambda message, *, tx: None}, "too many positional arguments"),
        ({"on_malformed": lambda entry: None}, r"called as on_malformed\(entry, tx\)"),
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


@pytest.mark.parametrize("handler", [lambda *all: None, lambda message, tx=None, more=1: None, print, max])
def test_a_handler_that_can_be_called_is_not_refused(redis_url: str, handler: Any) -> None:
    """Whatever its signature is, and also if it has none that can be read."""
    with connect(redis_url) as client:
        consumer = QueueConsumer(client, settings())
        consumer.stop()
        consumer.run(handler=handler, db_factory=NoTransactions())


def generating(message: Any, tx: Any) -> Any:
    raise AssertionError("never run")
    yield


async def generating_async(message: Any, tx: Any) -> Any:
    raise AssertionError("never run")
    yield


class GeneratingCall:
    def __call__(self, message: Any, tx: Any) -> Any:
        yield from generating(message, tx)


@pytest.mark.clause("C-01")
@pytest.mark.parametrize("argument", ["handler", "on_malformed"])
@pytest.mark.parametrize("method", ["run", "run_recovery"])
@pytest.mark.parametrize(
    "wrong", [generating, generating_async, partial(generating, tx=None), GeneratingCall()]
)
def test_a_generator_function_is_refused_before_anything_is_read(
    queues: Any, monitor: Monitor, wrong: Any, method: str, argument: str
) -> None:
    consumer = queues.consumer()
    monitor.commands()
    given = {"handler": print, argument: wrong, "db_factory": NoTransactions()}
    with pytest.raises(QueueConfigError, match="is a generator function: calling it would not run it"):
        exactly(consumer, method, **given)
    assert monitor.commands() == []


def exactly(consumer: Any, method: str, **arguments: Any) -> None:
    """Call it with these very functions, which the asyncio variant would otherwise make coroutine functions."""
    call = (
        Blocking.__getattr__(consumer, method)
        if isinstance(consumer, Blocking)
        else getattr(consumer, method)
    )
    call(**arguments)


class AwaitableThing:
    def __await__(self) -> Any:
        raise AssertionError("never run")
        yield


DEFERRED: dict[str, Callable[..., Any]] = {
    "a generator": lambda *given: generating(*given),
    "an asynchronous generator": lambda *given: generating_async(*given),
    "a lazy iterator": lambda *given: map(generating, given, given),
    "a Future": lambda *given: Future(),
    "a coroutine": lambda *given: coroutine_handler(*given),
    "an awaitable": lambda *given: AwaitableThing(),
}


@pytest.mark.clause("C-01", "C-02")
@pytest.mark.parametrize("kind", DEFERRED)
def test_what_nobody_would_run_is_no_success(
    queues: Any, stream: Stream, monitor: Monitor, kind: str
) -> None:
    handler = DEFERRED[kind]
    if queues.name == "async" and kind in (
        "a coroutine",
        "an awaitable",
    ):  # they are run; not what is in them
        inner = handler

        async def handler(*given: Any) -> Any:
            return inner(*given)

    (entry_id,) = stream.add("{}")
    recording = Recording()
    factory = recording if queues.name == "sync" else AsyncRecording(recording)
    consumer = queues.consumer()
    monitor.commands()
    with pytest.raises(AsyncCallableError, match=f"returned {kind}"):
        exactly(consumer, "run", handler=handler, db_factory=factory)
    assert recording.events == ["begin", "rollback"]
    assert monitor.names() == ["XREADGROUP"]
    assert stream.pending() == {entry_id: "alice"}


class Returning:
    """A factory whose transactions are whatever the test says."""

    def __init__(self, tx: Any) -> None:
        self.begin = lambda: tx


class NoRollback:
    def commit(self) -> None: ...


class CommitThatYields(NoRollback):
    def commit(self) -> Any:
        yield

    def rollback(self) -> None: ...


class CommitThatReturnsAGenerator(CommitThatYields):
    def commit(self) -> Any:
        return super().commit()


@pytest.mark.clause("C-01")
@pytest.mark.parametrize(
    ("tx", "error", "told"),
    [
        (None, QueueConfigError, r"Returning.begin\(\) returned a NoneType, which has no method commit\(\)"),
        (NoRollback(), QueueConfigError, r"returned a NoRollback, which has no method rollback\(\)"),
        (CommitThatYields(), QueueConfigError, "CommitThatYields.commit is a generator function"),
        (CommitThatReturnsAGenerator(), AsyncCallableError, "commit returned a generator"),
    ],
)
def test_a_transaction_that_cannot_be_committed_is_refused(
    queues: Any, stream: Stream, tx: Any, error: type[Exception], told: str
) -> None:
    (entry_id,) = stream.add("{}")
    called: list[Any] = []
    with pytest.raises(error, match=told):
        exactly(
            queues.consumer(),
            "run",
            handler=lambda message, tx: called.append(message),
            db_factory=Returning(tx),
        )
    assert bool(called) is (error is AsyncCallableError)
    assert stream.pending() == {entry_id: "alice"}


def test_an_asyncio_transaction_is_refused_by_the_sync_consumer(redis_url: str, stream: Stream) -> None:
    stream.add("{}")
    with (
        connect(redis_url) as client,
        pytest.raises(QueueConfigError, match="commit is a coroutine function"),
    ):
        QueueConsumer(client, settings()).run(
            handler=lambda message, tx: pytest.fail("it was called"),
            db_factory=Returning(AsyncRecordedTx(Recording().begin())),
        )


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


def rescued_meanwhile(stream: Stream, rescuer: str = "bob") -> Callable[[], object]:
    """What happens to a consumer that is slower than `claim_idle_ms`: another one takes its message over."""
    return lambda: stream.raw.xclaim(STREAM, stream.group, rescuer, 0, list(stream.pending()), justid=True)


@pytest.mark.clause("C-15")
@pytest.mark.parametrize("how", ["run", "run_recovery"])
def test_fenced_a_slow_consumer_does_not_acknowledge_what_its_rescuer_holds(
    queues: Any, stream: Stream, monitor: Monitor, how: str
) -> None:
    (entry_id,) = stream.add("{}")
    if how == "run_recovery":
        stream.set_idle(queues.queue("gone").read(1000), 70_000)
    consumer = queues.consumer("alice")
    recording = Recording(handler=rescued_meanwhile(stream))
    with pytest.raises(LeaseLostError, match=f"{entry_id}.* is held by consumer 'bob' now"):
        getattr(consumer, how)(handler=recording.handle, db_factory=recording, fenced=True)
    assert recording.events == [
        "begin",
        f"handler {entry_id}",
        "commit",
    ]  # after the commit, and not rolled back
    assert stream.pending() == {entry_id: "bob"}


@pytest.mark.clause("C-15")
def test_without_the_fence_it_does(queues: Any, stream: Stream) -> None:
    stream.add("{}")
    consumer = queues.consumer("alice")
    recording = Recording(handler=rescued_meanwhile(stream), commit=consumer.stop)
    consumer.run(handler=recording.handle, db_factory=recording)
    assert stream.pending() == {}


@pytest.mark.clause("C-01", "C-15")
def test_fenced_it_acknowledges_what_it_holds_and_looks_at_no_other_entry(
    queues: Any, stream: Stream, monitor: Monitor
) -> None:
    stream.add("{}", "{}", "{}")
    stream.set_idle(queues.queue("gone").read(1000, 1), 600_000)
    consumer = queues.consumer(claim_idle_ms=1)
    recording = Recording(commit=lambda: recording.events.count("commit") == 2 and consumer.stop())
    monitor.ignore(stream.raw)
    monitor.commands()
    consumer.run(handler=recording.handle, db_factory=recording, fenced=True)
    sent = monitor.commands()
    own = [event.split()[1] for event in recording.events if "handler" in event]
    assert [words[0] for words in sent] == ["XREADGROUP", "EVAL", "lua:XPENDING", "lua:XACK"] * 2
    assert [words[3:] for words in sent if words[0] == "lua:XPENDING"] == [(i, i, "1") for i in own]
    assert list(stream.pending().values()) == ["gone"]


class ByContextManager:
    """A transaction on top of a context manager, which commits or rolls back by the exception that it is given."""

    def __init__(self) -> None:
        self.given: list[Any] = []

    def begin(self) -> ByContextManager:
        return self

    def commit(self) -> None:
        self.given.append("commit")

    def rollback(self) -> None:
        self.given.append(sys.exc_info())


class AsyncByContextManager(ByContextManager):
    async def begin(self) -> AsyncByContextManager:  # type: ignore[override]
        return self

    async def rollback(self) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        self.given.append(sys.exc_info())


@pytest.mark.clause("C-02")
def test_rollback_sees_the_exception_that_it_is_for(queues: Any, stream: Stream) -> None:
    stream.add("{}")
    factory = ByContextManager() if queues.name == "sync" else AsyncByContextManager()
    failure = ValueError("of the handler")

    def handle(message: Any, tx: Any) -> None:
        raise failure

    with pytest.raises(ValueError, match="of the handler") as caught:
        queues.consumer().run(handler=handle, db_factory=factory)
    assert caught.value is failure
    ((kind, error, trace),) = factory.given
    assert (kind, error) == (ValueError, failure)
    assert "handle" in [frame.name for frame in traceback.extract_tb(trace)]
    frames = [frame.name for frame in traceback.extract_tb(failure.__traceback__)]
    assert not any(name.startswith("_rollback") for name in frames)
    assert failure.__context__ is None
