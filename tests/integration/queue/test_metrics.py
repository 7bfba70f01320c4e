"""Prometheus metrics: in the default registry, after success only, and never a cause of failure."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import prometheus_client
import pytest
from prometheus_client import REGISTRY

from conquiet.observe.failsafe import say_once
from conquiet.queue import LeaseLostError, MalformedEntryError, QueueError
from tests.integration.queue.gate import Gate
from tests.integration.queue.processes import run_program
from tests.integration.queue.stream import Stream

FAMILIES = {
    "conquiet_queue_messages_read": "counter",
    "conquiet_queue_messages_ack": "counter",
    "conquiet_queue_messages_claimed": "counter",
    "conquiet_queue_read_latency_seconds": "histogram",
}


@pytest.fixture
def key() -> str:
    """A stream per test: all tests of the process share the registry."""
    return f"measured-{uuid4()}"


def measured(key: str) -> dict[str, float]:
    names = {
        "read": "conquiet_queue_messages_read_total",
        "ack": "conquiet_queue_messages_ack_total",
        "claimed": "conquiet_queue_messages_claimed_total",
        "reads": "conquiet_queue_read_latency_seconds_count",
    }
    return {short: REGISTRY.get_sample_value(name, {"stream": key}) or 0.0 for short, name in names.items()}


def figures(read: int = 0, ack: int = 0, claimed: int = 0, reads: int = 0) -> dict[str, float]:
    return {"read": read, "ack": ack, "claimed": claimed, "reads": reads}


@pytest.mark.clause("S-27", "C-20")
def test_they_are_in_the_default_registry_with_the_label_stream_and_nothing_else(
    queues: Any, key: str
) -> None:
    queues.consumer(stream_key=key).next(10)
    families = {
        f.name: f
        for f in REGISTRY.collect()
        if f.name.startswith("conquiet_queue") and f.name != "conquiet_queue_depth"
    }
    assert {name: family.type for name, family in families.items()} == FAMILIES
    for family in families.values():
        labels = {frozenset(sample.labels) - {"le"} for sample in family.samples}
        assert labels == {frozenset({"stream"})}


@pytest.mark.clause("S-27", "S-28")
def test_they_count_entries(queues: Any, key: str, raw: Any) -> None:
    alice, bob = queues.queue("alice", stream_key=key), queues.queue("bob", stream_key=key)
    assert measured(key) == figures()
    alice.enqueue_many([{}] * 5)
    assert alice.read(1000, 3)[0].stream == key
    assert measured(key) == figures(read=3, reads=1)
    rest = alice.read(1000, 10)
    assert alice.read(10) == []  # empty, but measured
    assert measured(key) == figures(read=5, reads=3)
    alice.ack(rest[0])
    alice.ack_if_owner(rest[1])
    assert measured(key) == figures(read=5, reads=3, ack=2)
    assert len(bob.claim_stale(0, 2)) == 2
    assert measured(key) == figures(read=5, reads=3, ack=2, claimed=2)
    assert alice.ack_many(bob.claim_stale(0, 10)) == 3
    assert measured(key) == figures(read=5, reads=3, ack=5, claimed=5)
    raw.xadd(key, {"wrong": 1})
    with pytest.raises(MalformedEntryError):
        alice.read(1000)  # a successful call, and an entry: it was delivered
    assert measured(key) == figures(read=6, reads=4, ack=5, claimed=5)


@pytest.mark.clause("S-27")
def test_the_latency_includes_the_blocking(queues: Any, key: str) -> None:
    queues.queue(stream_key=key).read(120)
    total = REGISTRY.get_sample_value("conquiet_queue_read_latency_seconds_sum", {"stream": key})
    assert total is not None
    assert 0.1 < total < 5


@pytest.mark.clause("S-28")
def test_what_fails_is_not_measured(queues: Any, key: str, raw: Any) -> None:
    queue, consumer = queues.queue(stream_key=key), queues.consumer(stream_key=key)
    queue.enqueue_many([{}] * 2)
    lost, message = queue.read(1000, 2)
    assert len(queues.queue("bob", stream_key=key).claim_stale(0, 1)) == 1
    before = measured(key)
    with pytest.raises(LeaseLostError):
        queue.ack_if_owner(lost)
    raw.delete(key)
    raw.rpush(key, "no stream")
    calls = [
        lambda: queue.read(10),
        lambda: consumer.next(10),
        lambda: queue.ack(message),
        lambda: queue.ack_many([message]),
        lambda: queue.claim_stale(0),
        lambda: queue.read(0),
        lambda: queue.claim_stale(-1),
        lambda: queue.enqueue({"not": {"json"}}),
    ]
    for call in calls:
        with pytest.raises(QueueError):
            call()
    assert measured(key) == before


@pytest.mark.clause("S-28")
def test_only_what_was_really_claimed_counts_as_claimed(queues: Any, key: str, raw: Any, gate: Gate) -> None:
    """Entries that were only found to be stale do not count: the claim may fail, or the entry may be gone."""
    alice = queues.queue("alice", stream_key=key)
    ids = alice.enqueue_many([{}] * 3)
    alice.read(1000, 3)
    bob = queues.queue("bob", stream_key=key, client=queues.client(gate.url))
    gate.lose("XCLAIM")
    with pytest.raises(QueueError):
        bob.claim_stale(0)
    assert measured(key) == figures(read=3, reads=1)
    raw.xdel(key, ids[0])
    assert bob.claim_stale(0).gone == ids[:1]
    assert measured(key) == figures(read=3, reads=1, claimed=2)


@pytest.mark.clause("S-27")
def test_acknowledgements_before_a_failure_count(queues: Any, key: str, gate: Gate) -> None:
    """More than fit into one command: the first command succeeded, the second is lost."""
    queue = queues.queue(stream_key=key, client=queues.client(gate.url))
    queue.enqueue_many([{}] * 1_100)
    messages = queue.read(1000, 1_100)
    gate.lose("XACK", nth=2)
    with pytest.raises(QueueError):
        queue.ack_many(messages)
    assert measured(key)["ack"] == 1_000


@pytest.mark.clause("S-28")
@pytest.mark.parametrize("at", ["use", "lookup"])
def test_a_failing_backend_never_raises(
    queues: Any,
    stream: Stream,
    key: str,
    at: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*args: object) -> None:
        raise RuntimeError("the backend is down")

    say_once.cache_clear()
    for family in (prometheus_client.Counter, prometheus_client.Histogram):
        if at == "lookup":
            monkeypatch.setattr(family, "labels", fail)
    if at == "use":
        monkeypatch.setattr(prometheus_client.Counter, "inc", fail)
        monkeypatch.setattr(prometheus_client.Histogram, "observe", fail)
    queue = queues.queue(stream_key=key)
    ids = queue.enqueue_many([{"n": 1}, {"n": 2}])
    first, second = queue.read(1000, 2)
    assert [first.id, second.id] == ids
    queue.ack(first)
    assert queue.claim_stale(0) == [second]
    queue.ack_if_owner(second)
    assert Stream(stream.raw, key).pending() == {}
    said = [record for record in caplog.records if record.name == "conquiet.observe"]
    assert len(said) == 1  # once, not for every message
    assert "metrics backend failed" in said[0].getMessage()


@pytest.mark.clause("S-27", "S-28")
@pytest.mark.parametrize("obstacle", ["not installed", "names taken"])
def test_without_a_usable_prometheus_client_the_queue_works_all_the_same(
    variant: str, redis_url: str, obstacle: str
) -> None:
    lines = run_program("unmeasured", variant, redis_url, obstacle)
    assert lines == ["delivered 3, acknowledged 3"]
