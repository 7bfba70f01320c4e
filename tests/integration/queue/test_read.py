"""read: new messages, which are pending from then on."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from conquiet.queue import QueueConfigError, QueueError, QueueMessage, connect, connect_async
from tests.integration.queue.monitor import Monitor
from tests.integration.queue.stream import Stream
from tests.integration.queue.variants import GROUP, STREAM

NOT_POSITIVE_INTS = [0, -1, True, False, 1.0, 1.5, "5", None, b"1", [1]]


@pytest.mark.clause("S-11")
def test_read_is_one_xreadgroup_for_new_messages(queues: Any, monitor: Monitor) -> None:
    queue = queues.queue("carol")
    monitor.commands()
    assert queue.read(30) == []
    assert queue.read(25, count=7) == []
    assert queue.read(25, 7) == []
    wanted = "XREADGROUP GROUP {} carol COUNT {} BLOCK {} STREAMS {} >"
    assert [" ".join(words) for words in monitor.commands()] == [
        wanted.format(GROUP, 1, 30, STREAM),
        wanted.format(GROUP, 7, 25, STREAM),
        wanted.format(GROUP, 7, 25, STREAM),
    ]


@pytest.mark.clause("S-11")
def test_a_read_with_ever_new_limits_sends_those_limits(queues: Any, monitor: Monitor) -> None:
    queue = queues.queue()
    queue.enqueue_many({"n": number} for number in range(820))  # no read has to wait
    monitor.commands()
    for count in range(1, 41):  # cached packed commands must not be mixed up
        queue.read(count + 100, count)
    assert [(words[5], words[7]) for words in monitor.commands()] == [
        (str(count), str(count + 100)) for count in range(1, 41)
    ]


@pytest.mark.clause("S-12")
@pytest.mark.parametrize("wrong", NOT_POSITIVE_INTS, ids=repr)
def test_a_read_without_a_positive_limit_is_refused_before_redis_is_called(
    queues: Any, monitor: Monitor, wrong: Any
) -> None:
    queue, consumer = queues.queue(), queues.consumer()
    monitor.commands()
    with pytest.raises(QueueConfigError, match="block_ms must be") as caught:
        queue.read(wrong)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, QueueError)
    with pytest.raises(QueueConfigError, match="count must be"):
        queue.read(100, wrong)
    with pytest.raises(QueueConfigError, match="count must be"):
        queue.claim_stale(0, wrong)
    if wrong is not None:  # for the consumer, None means the configured value
        with pytest.raises(QueueConfigError, match="block_ms must be"):
            consumer.next(wrong)
    assert monitor.commands() == []


@pytest.mark.clause("S-12")
def test_zero_is_refused_with_its_meaning_to_redis(queues: Any) -> None:
    with pytest.raises(QueueConfigError, match="block for ever"):
        queues.queue().read(0)


@pytest.mark.clause("S-13")
def test_count_is_a_limit_and_not_a_promise(queues: Any) -> None:
    queue = queues.queue()
    ids = queue.enqueue_many({"n": number} for number in range(5))
    assert [m.id for m in queue.read(100)] == ids[:1]
    assert [m.id for m in queue.read(100, 3)] == ids[1:4]
    assert [m.id for m in queue.read(100, 100)] == ids[4:]
    assert queue.read(20, 3) == []


@pytest.mark.clause("S-13")
def test_a_waiting_read_returns_with_the_first_message(
    queues: Any, stream: Stream, beside: ThreadPoolExecutor
) -> None:
    reading = beside.submit(queues.queue().read, 20_000, 10)
    stream.wait_for_reader()
    (entry_id,) = stream.add('{"n": 1}')
    (message,) = reading.result(timeout=10)
    assert message == QueueMessage(entry_id, {"n": 1}, STREAM, GROUP)


@pytest.mark.clause("S-14")
def test_what_read_returns_is_pending_for_this_consumer(queues: Any, stream: Stream) -> None:
    queue = queues.queue("alice")
    ids = queue.enqueue_many([{}, {}, {}])
    assert stream.pending() == {}
    queue.read(100, 2)
    assert stream.pending() == {ids[0]: "alice", ids[1]: "alice"}
    queues.queue("bob").read(100)
    assert stream.pending() == {ids[0]: "alice", ids[1]: "alice", ids[2]: "bob"}
    assert queue.read(10) == []  # pending is not new


@pytest.mark.clause("S-26")
def test_a_blocking_read_may_last_longer_than_the_socket_timeout(queues: Any) -> None:
    queue = queues.queue(client=queues.client(socket_timeout=0.1))
    assert queue.read(400) == []
    queue.enqueue({"still": "in order"})
    assert [m.payload for m in queue.read(400)] == [{"still": "in order"}]


@pytest.mark.clause("S-20")
def test_readers_side_by_side_never_get_the_same_message(queues: Any, beside: ThreadPoolExecutor) -> None:
    ids = queues.queue().enqueue_many({"n": number} for number in range(400))

    def drain(name: str) -> list[str]:
        queue = queues.queue(name)
        got: list[str] = []
        while messages := queue.read(50, 7):
            got += [message.id for message in messages]
        return got

    shares = list(beside.map(drain, ["alice", "bob", "carol", "dave"]))
    assert sorted(entry_id for share in shares for entry_id in share) == sorted(ids)
    assert sum(1 for share in shares if share) > 1


class ClusterLike:
    """Has no pool of its own: its nodes have one each."""


@pytest.mark.parametrize("maker", ["queue", "consumer"])
def test_what_is_no_client_of_the_right_kind_is_refused(queues: Any, redis_url: str, maker: str) -> None:
    other_kind, made_by = {
        "sync": (connect_async(redis_url), "connect\\(url\\)"),
        "async": (connect(redis_url), "connect_async\\(url\\)"),
    }[queues.name]
    for client in (object(), redis_url, ClusterLike(), other_kind):
        with pytest.raises(
            QueueConfigError, match=f"client is needed here, not .* conquiet.queue.{made_by} makes one"
        ):
            getattr(queues, maker)(client=client)
