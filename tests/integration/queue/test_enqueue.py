"""enqueue and enqueue_many."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis

from conquiet.errors import OutcomeUnknownError
from conquiet.queue import (
    PartialEnqueueError,
    QueueConnectionError,
    QueueError,
    QueueOutcomeUnknownError,
    QueuePayloadError,
    QueueRefusedError,
)
from tests.integration.queue.gate import Gate
from tests.integration.queue.monitor import Monitor
from tests.integration.queue.stream import Stream
from tests.integration.queue.variants import STREAM


@pytest.mark.clause("S-10")
def test_enqueue_is_one_xadd_and_gives_the_entry_id(queues: Any, stream: Stream, monitor: Monitor) -> None:
    queue = queues.queue()
    monitor.commands()
    entry_id = queue.enqueue({"n": 1})
    assert monitor.commands() == [("XADD", STREAM, "*", "data", '{"n":1}')]
    assert type(entry_id) is str
    assert list(stream.entries()) == [entry_id]


@pytest.mark.clause("S-10")
@pytest.mark.parametrize("strike", ["lose", "lose_reply_to"])
def test_enqueue_is_not_sent_again_when_the_connection_breaks(
    queues: Any, gate: Gate, monitor: Monitor, strike: str
) -> None:
    queue = queues.queue(client=queues.client(gate.url))
    monitor.commands()
    getattr(gate, strike)("XADD")
    with pytest.raises(QueueConnectionError, match="^enqueue on .* Nothing was retried"):
        queue.enqueue({"n": 1})
    assert len(monitor.commands("XADD")) == (0 if strike == "lose" else 1)
    queue.enqueue({"n": 2})  # the same object, on a new connection
    assert [json.loads(words[-1]) for words in monitor.commands("XADD")] == [{"n": 2}]


def test_enqueue_many_gives_the_ids_in_order(queues: Any, stream: Stream) -> None:
    queue = queues.queue()
    ids = queue.enqueue_many([{"n": number} for number in range(50)])
    assert all(type(entry_id) is str for entry_id in ids)
    entries = stream.entries()
    assert list(entries) == ids
    assert [json.loads(fields["data"]) for fields in entries.values()] == [{"n": n} for n in range(50)]
    assert all(list(fields) == ["data"] for fields in entries.values())


def test_enqueue_many_takes_any_iterable(queues: Any) -> None:
    queue = queues.queue()
    ids = queue.enqueue_many({"n": number} for number in range(3))
    assert [(m.id, m.payload["n"]) for m in queue.read(100, 10)] == list(zip(ids, range(3), strict=True))


def test_enqueue_many_of_nothing_sends_nothing(queues: Any, monitor: Monitor) -> None:
    queue = queues.queue()
    monitor.commands()
    assert queue.enqueue_many([]) == []
    assert queue.enqueue_many(iter(())) == []
    assert monitor.commands() == []


@pytest.mark.parametrize("wrong", [None, 5, {"n": 1}, "text", b"bytes"])
def test_what_are_no_payloads_is_refused(queues: Any, monitor: Monitor, wrong: Any) -> None:
    """Also one payload without a list around it, whose keys would be taken for payloads."""
    queue = queues.queue()
    with pytest.raises(QueuePayloadError, match=f"takes several payloads .*, not {type(wrong).__name__}"):
        queue.enqueue_many(wrong)
    assert monitor.commands("EVAL") == []


def test_one_refused_payload_refuses_them_all(queues: Any, monitor: Monitor) -> None:
    queue = queues.queue()
    monitor.commands()
    with pytest.raises(QueuePayloadError, match="payload number 1500 of this call refused: .* at \\$.n"):
        queue.enqueue_many({"n": {1} if number == 1500 else number} for number in range(2000))
    assert monitor.commands() == []


@pytest.mark.parametrize("rows", [1, 999, 1000, 1001, 2500])
def test_enqueue_many_goes_in_atomic_steps_of_a_thousand(
    queues: Any, stream: Stream, monitor: Monitor, rows: int
) -> None:
    queue = queues.queue()
    monitor.commands()
    ids = queue.enqueue_many({"n": number} for number in range(rows))
    sent = [name for name in monitor.names() if name != "lua:XINFO"]  # one per step: is there room for all?
    steps = [index for index, name in enumerate(sent) if name == "EVAL"]
    sizes = [end - start - 1 for start, end in zip(steps, [*steps[1:], len(sent)], strict=True)]
    assert sent.count("lua:XADD") == sum(sizes) == rows
    assert sizes == [1000] * (rows // 1000) + [rows % 1000] * bool(rows % 1000)
    assert len(set(ids)) == rows
    assert list(stream.entries()) == ids


def test_large_rows_go_in_smaller_steps(queues: Any, monitor: Monitor, stream: Stream) -> None:
    queue = queues.queue()
    monitor.commands()
    ids = queue.enqueue_many({"n": number, "big": "x" * 1_500_000} for number in range(5))
    assert monitor.names().count("EVAL") == 3  # two of 1.5 MB fit into 4 MiB
    assert [json.loads(fields["data"])["n"] for fields in stream.entries().values()] == list(range(5))
    assert list(stream.entries()) == ids


def test_what_redis_refuses_between_steps_is_certainly_not_in_the_stream(
    queues: Any, stream: Stream, raw: redis.Redis
) -> None:
    queue = queues.queue()
    raw.xadd(STREAM, {"data": "{}"}, id=f"{2**64 - 1}-{2**64 - 1 - 1_500}")  # room for 1,500 more
    with pytest.raises(PartialEnqueueError, match="no room for 1000 more") as caught:
        queue.enqueue_many({"n": number} for number in range(2500))
    error = caught.value
    assert (len(error.ids), error.unknown, error.not_added) == (1000, 0, 1500)
    assert "1000 are certainly in the stream (.ids), the last 1500 certainly not (.not_added)" in str(error)
    assert list(stream.entries())[1:] == error.ids


def test_a_refusal_of_the_first_step_is_a_refusal_of_all(queues: Any, raw: redis.Redis) -> None:
    queue = queues.queue()
    raw.delete(STREAM)
    raw.rpush(STREAM, "no stream")
    with pytest.raises(QueueRefusedError, match="WRONGTYPE"):
        queue.enqueue_many({"n": number} for number in range(2500))


def test_an_outcome_that_is_unknown_is_told_with_what_to_do(queues: Any, gate: Gate, stream: Stream) -> None:
    queue = queues.queue(client=queues.client(gate.url))
    gate.lose_reply_to("XADD")
    with pytest.raises(
        QueueOutcomeUnknownError, match="whether it was done is not known.*repeat it if that is safe"
    ):
        queue.enqueue({})
    assert len(stream.entries()) == 1


@pytest.mark.parametrize(("strike", "taken"), [("lose", 1000), ("lose_reply_to", 2000)])
def test_a_break_between_steps_says_what_is_in_the_stream(
    queues: Any, gate: Gate, stream: Stream, strike: str, taken: int
) -> None:
    queue = queues.queue(client=queues.client(gate.url))
    getattr(gate, strike)("EVAL", nth=2)
    with pytest.raises(
        PartialEnqueueError, match="Of 2500 payloads, 1000 are certainly in the stream"
    ) as caught:
        queue.enqueue_many({"n": number} for number in range(2500))
    error = caught.value
    assert isinstance(error, QueueError)
    assert isinstance(error.__cause__, ConnectionError) or "Connection" in type(error.__cause__).__name__
    assert (error.unknown, error.not_added) == (1000, 500)
    assert "the next 1000 are all in or all not (.unknown), the last 500 certainly not" in str(error)
    stored = list(stream.entries())
    assert len(stored) == taken  # each step is stored in full or not at all
    assert stored[:1000] == error.ids


@pytest.mark.parametrize("strike", ["lose", "lose_reply_to"])
def test_a_break_in_the_only_step_is_an_ordinary_connection_error(
    queues: Any, gate: Gate, stream: Stream, strike: str
) -> None:
    queue = queues.queue(client=queues.client(gate.url))
    getattr(gate, strike)("EVAL")
    with pytest.raises(QueueConnectionError) as caught:
        queue.enqueue_many([{"n": 1}, {"n": 2}])
    assert isinstance(caught.value, OutcomeUnknownError)  # the two cases cannot be distinguished
    assert len(stream.entries()) == (0 if strike == "lose" else 2)


@pytest.mark.parametrize("room", [0, 1, 2, 3])
def test_at_the_last_ids_of_a_stream_enqueue_many_is_whole_or_nothing(
    queues: Any, stream: Stream, raw: redis.Redis, room: int
) -> None:
    last = 2**64 - 1
    queue = queues.queue()
    raw.xadd(stream.key, {"data": "{}"}, id=f"{last}-{last - room}")
    if room < 3:
        with pytest.raises(
            QueueRefusedError, match=f"after {last}-{last - room} there is no room for 3 more"
        ):
            queue.enqueue_many([{}] * 3)
        assert len(stream.entries()) == 1
    else:
        assert queue.enqueue_many([{}] * 3) == [f"{last}-{last - left}" for left in (2, 1, 0)]
    for left in reversed(range(room if room < 3 else 0)):  # one by one they still fit
        assert queue.enqueue({}) == f"{last}-{last - left}"
    with pytest.raises(QueueRefusedError, match="exhausted"):
        queue.enqueue({})


def test_ids_ahead_of_the_clock_leave_room(queues: Any, stream: Stream, raw: redis.Redis) -> None:
    last = 2**64 - 1
    queue = queues.queue()
    raw.xadd(stream.key, {"data": "{}"}, id=f"{last - 1}-{last}")
    assert queue.enqueue_many([{}] * 2) == [f"{last}-0", f"{last}-1"]
