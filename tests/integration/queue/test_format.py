"""One field `data` with a JSON object: what is accepted, what is refused, and how foreign entries are handled."""

from __future__ import annotations

import json
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
import redis

from conquiet.payload import PayloadLimits
from conquiet.queue import MalformedEntryError, QueueError, QueuePayloadError
from tests.integration.queue.monitor import Monitor
from tests.integration.queue.stream import Stream
from tests.integration.queue.variants import STREAM

PAYLOADS: list[dict[str, Any]] = [
    {},
    {"text": "Grüße, 世界 🚀", "controls": "\x00\x1f\u2028", "empty": ""},
    {"whole": 2**70, "negative": -(2**64), "real": 1.5e300, "tiny": 5e-324, "yes": True, "none": None},
    {"nested": {"lists": [[], [1, [2, {"deep": [3]}]]], "": "an empty key"}},
    {"data": {"data": "not confused by its own name"}},
    {"big": "x" * 1_000_000},
]


def nested(depth: int) -> dict[str, Any]:
    payload: dict[str, Any] = {}
    for _ in range(depth - 1):
        payload = {"in": payload}
    return payload


def circular() -> dict[str, Any]:
    payload: dict[str, Any] = {}
    payload["itself"] = payload
    return payload


REFUSED: list[Any] = [
    pytest.param({"n": float("nan")}, "nan at \\$.n", id="NaN"),
    pytest.param({"n": [float("-inf")]}, "-inf", id="infinity"),
    pytest.param({"b": b"bytes"}, "bytes at \\$.b", id="bytes"),
    pytest.param({"s": {1, 2}}, "set at \\$.s", id="set"),
    pytest.param({"d": datetime(2024, 1, 1)}, "datetime", id="datetime"),
    pytest.param({"d": Decimal("1.1")}, "Decimal", id="Decimal"),
    pytest.param({"u": UUID(int=1)}, "UUID", id="UUID"),
    pytest.param({"o": object()}, "object", id="object"),
    pytest.param({1: "key"}, "key .* int", id="int key"),
    pytest.param({"t": "lone \ud800 surrogate"}, "surrogate", id="surrogate"),
    pytest.param({"\udfff": 1}, "surrogate", id="surrogate in a key"),
    pytest.param(circular(), "contains itself", id="circular"),
    pytest.param(nested(100_000), "deeper than 100", id="depth 100,000"),
    pytest.param(nested(101), "deeper than 100", id="depth 101"),
    pytest.param({"big": "x" * (8 * 1024 * 1024)}, "over the limit", id="too big"),
    pytest.param(["a", "list"], "a payload is a dict", id="list"),
    pytest.param("text", "a payload is a dict", id="str"),
    pytest.param(None, "a payload is a dict", id="None"),
]  # fmt: skip


@pytest.mark.clause("S-05", "S-08")
@pytest.mark.parametrize("payload", [*PAYLOADS, nested(100)], ids=range(len(PAYLOADS) + 1))
def test_an_entry_is_one_field_of_utf_8_json_and_comes_back_equal(
    queues: Any, stream: Stream, payload: dict[str, Any]
) -> None:
    queue = queues.queue()
    entry_id = queue.enqueue(payload)
    ((stored_id, fields),) = stream.entries().items()  # the client decodes UTF-8, or raises
    assert stored_id == entry_id
    assert list(fields) == ["data"]
    assert json.loads(fields["data"]) == payload
    (message,) = queue.read(100)
    assert (message.id, message.payload) == (entry_id, payload)


@pytest.mark.clause("S-08", "S-09")
@pytest.mark.parametrize(("payload", "said"), REFUSED)
def test_what_is_not_json_is_refused_before_anything_is_sent(
    queues: Any, monitor: Monitor, payload: Any, said: str
) -> None:
    queue = queues.queue()
    monitor.commands()
    with pytest.raises(QueuePayloadError, match=said) as caught:
        queue.enqueue(payload)
    assert isinstance(caught.value, ValueError)
    assert len(str(caught.value)) < 500
    with pytest.raises(QueuePayloadError, match=f"number 1 of this call .*{said}"):
        queue.enqueue_many([{"good": 1}, payload, {"good": 2}])
    assert monitor.commands() == []


@pytest.mark.clause("S-09")
def test_the_limits_are_the_callers_to_set(queues: Any) -> None:
    queue = queues.queue(limits=PayloadLimits(max_bytes=20, max_depth=2))
    queue.enqueue({"a": {}})
    refused: list[dict[str, Any]] = [{"a": {"b": {}}}, {"a": "x" * 20}]
    for payload in refused:
        with pytest.raises(QueuePayloadError):
            queue.enqueue(payload)


def test_a_refused_payload_is_not_quoted(queues: Any) -> None:
    with pytest.raises(QueuePayloadError) as caught:
        queues.queue().enqueue({"card": "4111-1111", "when": datetime(2024, 1, 1)})
    assert "4111" not in str(caught.value)


MALFORMED: list[Any] = [
    pytest.param({"date": "{}"}, "its fields are 'date'", id="renamed"),
    pytest.param({"data": "{}", "more": "1"}, "its fields are 'data', 'more'", id="extra"),
    pytest.param({b"\xff\r\n\x1b[31m": "{}"}, r"its fields are '\ufffd\r\n\x1b[31m'", id="binary name"),
    pytest.param({"data": "{not json"}, "not UTF-8 JSON", id="not JSON"),
    pytest.param({"data": b'{"t": "\xff"}'}, "not UTF-8 JSON", id="not UTF-8"),
    pytest.param({"data": ""}, "not UTF-8 JSON", id="empty"),
    pytest.param({"data": "[1]"}, "a JSON object was expected, not an array", id="array"),
    pytest.param({"data": '"text"'}, "not a string", id="string"),
    pytest.param({"data": "1.5"}, "not a number", id="number"),
    pytest.param({"data": "true"}, "not a boolean", id="boolean"),
    pytest.param({"data": "null"}, "not null", id="null"),
    pytest.param({"data": '{"n": NaN}'}, "not UTF-8 JSON", id="NaN"),
    pytest.param({"data": "[" * 100_000 + "]" * 100_000}, "not UTF-8 JSON", id="depth 100,000"),
]


@pytest.mark.clause("S-06", "S-08")
@pytest.mark.parametrize("how", ["read", "claim_stale"])
@pytest.mark.parametrize(("fields", "said"), MALFORMED)
def test_a_malformed_entry_is_named_and_stays_pending(
    queues: Any, stream: Stream, fields: dict[Any, Any], said: str, how: str
) -> None:
    queue = queues.queue()
    entry_id = stream.raw.xadd(STREAM, fields)
    if how == "claim_stale":
        with pytest.raises(MalformedEntryError):
            queues.queue("bob").read(100, 10)
    with pytest.raises(MalformedEntryError) as caught:
        queue.read(100) if how == "read" else queue.claim_stale(0)
    error = caught.value
    assert isinstance(error, QueueError)
    assert entry_id in str(error)
    assert said in str(error)
    assert "\x1b" not in str(error)
    (entry,) = error.entries
    size = sum(
        len(part.encode() if isinstance(part, str) else part) for item in fields.items() for part in item
    )
    assert (entry.id, entry.stream, entry.group, entry.size) == (entry_id, STREAM, stream.group, size)
    assert said in entry.reason
    assert list(error.messages) == []
    assert stream.pending() == {entry_id: "alice"}
    queue.ack(entry)  # how to get rid of it
    assert stream.pending() == {}


@pytest.mark.clause("S-07")
@pytest.mark.parametrize("how", ["read", "claim_stale"])
def test_malformed_entries_cost_none_of_the_good_ones(queues: Any, stream: Stream, how: str) -> None:
    queue = queues.queue()
    good, bad = [], []
    for number in range(10):
        if number in (0, 4, 9):
            bad.append(stream.raw.xadd(STREAM, {"wrong": number}))
        else:
            good.append(stream.raw.xadd(STREAM, {"data": json.dumps({"n": number})}))
    if how == "claim_stale":
        with pytest.raises(MalformedEntryError):
            queues.queue("bob").read(100, 10)
    with pytest.raises(MalformedEntryError, match="and 2 more") as caught:
        queue.read(100, 10) if how == "read" else queue.claim_stale(0, 10)
    assert [message.id for message in caught.value.messages] == good
    assert [message.payload["n"] for message in caught.value.messages] == [1, 2, 3, 5, 6, 7, 8]
    assert [entry.id for entry in caught.value.entries] == bad
    assert stream.pending() == dict.fromkeys(sorted(good + bad), "alice")
    assert queue.ack_many([*caught.value.messages, *caught.value.entries]) == 10


@pytest.mark.parametrize("options", [{"decode_responses": True}, {"protocol": 2}, {"protocol": 3}], ids=str)
def test_the_clients_own_decoding_and_protocol_change_nothing(
    queues: Any, raw: redis.Redis, options: dict[str, Any]
) -> None:
    queue = queues.queue(client=queues.client(**options))
    first = queue.enqueue({"text": "Grüße"})
    many = queue.enqueue_many([{"n": 1}, {"n": 2}])
    messages = queue.read(100, 10)
    assert [(m.id, m.payload) for m in messages] == [
        (first, {"text": "Grüße"}), (many[0], {"n": 1}), (many[1], {"n": 2}),
    ]  # fmt: skip
    assert [(m.stream, m.group) for m in messages] == [(STREAM, "billing")] * 3
    assert queue.read(10) == []
    assert queue.claim_stale(0, 10) == messages
    queue.ack_if_owner(messages[0])
    queue.ack(messages[1])
    stats = queue.backlog_stats()
    assert (stats.length, stats.lag, stats.pending, stats.oldest_pending_id) == (3, 0, 1, many[1])
    assert stats.pending_by_consumer == {"alice": 1}
    raw.xadd(STREAM, {"x": b"\xff"})
    with pytest.raises(MalformedEntryError):
        queue.read(100)
