"""`min_replicas`: an enqueue returns when the replicas have it, or says that they may not."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from conquiet.errors import OutcomeUnknownError
from conquiet.queue import (
    AsyncRedisStreamsQueue,
    PartialEnqueueError,
    QueueConfig,
    QueueConfigError,
    QueueRefusedError,
    RedisStreamsQueue,
    UnreplicatedEnqueueError,
)
from tests.integration.queue.gate import Gate
from tests.integration.queue.monitor import Monitor
from tests.integration.queue.variants import STREAM, AsyncVariant, Blocking, LoopThread, SyncVariant
from tests.topologies import Replicated, eventually

CONFIG = QueueConfig(STREAM, "billing", "alice")


class Queues:
    """Queues with `min_replicas`, of both variants."""

    def __init__(self, variant: Any, loop: LoopThread) -> None:
        self._variant, self._loop = variant, loop

    def queue(self, url: str, **options: Any) -> Any:
        client = self._variant.client(url)
        if self._variant.name == "sync":
            return RedisStreamsQueue(client, CONFIG, **options)
        return Blocking(self._loop.wait(AsyncRedisStreamsQueue.create(client, CONFIG, **options)), self._loop)


@pytest.fixture
def made(variant: str, loop_thread: LoopThread) -> Iterator[Queues]:
    kind: Any = SyncVariant("") if variant == "sync" else AsyncVariant("", loop_thread)
    yield Queues(kind, loop_thread)
    kind.close()


def test_what_is_returned_is_on_the_replica(made: Queues, replicated: Replicated) -> None:
    queue = made.queue(replicated.url, min_replicas=1, replicas_timeout_ms=30_000)
    (replica,) = replicated.replicas
    with Monitor(replicated.master.url) as monitor:
        for number in range(20):
            entry_id = queue.enqueue({"n": number})
            ids = queue.enqueue_many([{"n": number}, {"n": number}])
            assert [entry for entry, _ in replica.raw.xrange(STREAM, entry_id)] == [entry_id, *ids]
        waits = [command for command in monitor.commands() if command[0] in ("XADD", "EVAL", "WAIT")]
    assert [command[0] for command in waits] == ["XADD", "WAIT", "EVAL", "WAIT"] * 20


def test_a_replica_that_does_not_confirm_in_time(made: Queues, replicated: Replicated) -> None:
    queue = made.queue(replicated.url, min_replicas=1, replicas_timeout_ms=50)
    (replica,) = replicated.replicas
    replica.pause()
    with pytest.raises(
        UnreplicatedEnqueueError, match="0 of 1 replicas have confirmed that within 50 ms"
    ) as one:
        queue.enqueue({"n": 1})
    with pytest.raises(UnreplicatedEnqueueError, match="2 entries, .* are on the master") as many:
        queue.enqueue_many([{"n": 2}, {"n": 3}])
    assert isinstance(one.value, OutcomeUnknownError)
    stored = [entry for entry, _ in replicated.master.raw.xrange(STREAM)]
    assert [*one.value.ids, *many.value.ids] == stored
    assert one.value.replicas == 0
    assert one.value.ids[0] in str(one.value)
    again = pickle.loads(pickle.dumps(one.value))
    assert (again.ids, again.replicas, str(again)) == (one.value.ids, 0, str(one.value))
    replica.resume()
    eventually(lambda: replica.raw.xlen(STREAM) == 3, "the replica has caught up")
    patient = made.queue(replicated.url, min_replicas=1, replicas_timeout_ms=30_000)
    assert patient.enqueue({"n": 4}) not in stored


def test_of_many_the_first_part_may_be_confirmed(made: Queues, replicated: Replicated) -> None:
    queue = made.queue(replicated.url, min_replicas=2, replicas_timeout_ms=10)  # there is one
    with pytest.raises(PartialEnqueueError, match="0 are certainly in the stream") as caught:
        queue.enqueue_many([{"n": n} for n in range(1_500)])
    assert (caught.value.ids, caught.value.unknown) == ([], 1_000)
    assert isinstance(caught.value.__cause__, UnreplicatedEnqueueError)
    assert replicated.master.raw.xlen(STREAM) == 1_000


def test_a_master_whose_replica_has_left_is_left_as_well(made: Queues, replicated: Replicated) -> None:
    """In a planned failover Sentinel tells the old master last; until then it takes entries that will be lost."""
    queue = made.queue(replicated.url, min_replicas=1, replicas_timeout_ms=50)
    new = replicated.abandon()
    with pytest.raises(UnreplicatedEnqueueError) as first:
        queue.enqueue({"n": 1})
    with pytest.raises(UnreplicatedEnqueueError) as second:
        queue.enqueue({"n": 2})
    assert [entry for entry, _ in replicated.master.raw.xrange(STREAM)] == list(first.value.ids)
    assert [entry for entry, _ in new.raw.xrange(STREAM)] == list(second.value.ids)


def test_a_master_that_refuses_for_want_of_replicas_is_left(made: Queues, replicated: Replicated) -> None:
    replicated.master.raw.config_set("min-replicas-to-write", 1)
    queue = made.queue(replicated.url)
    new = replicated.abandon()
    eventually(
        lambda: replicated.master.raw.info("replication")["connected_slaves"] == 0,
        "it knows that it is alone",
    )
    with pytest.raises(QueueRefusedError, match="NOREPLICAS") as caught:
        queue.enqueue({"n": 1})
    assert caught.value.code == "NOREPLICAS"
    assert [queue.enqueue({"n": 2})] == [entry for entry, _ in new.raw.xrange(STREAM)]


@pytest.mark.clause("S-10")
def test_a_connection_that_breaks_before_the_confirmation(
    made: Queues, gate: Gate, redis_url: str, monitor: Monitor
) -> None:
    """The entry is known, its replicas are not. No reply is left over for the next call."""
    queue = made.queue(gate.url, min_replicas=1, replicas_timeout_ms=60_000)
    with redis.Redis.from_url(redis_url, decode_responses=True) as raw:
        gate.cut_after_reply_to("XADD")
        with pytest.raises(UnreplicatedEnqueueError, match="no replica is known to have confirmed") as caught:
            queue.enqueue({"n": 1})
        assert isinstance(caught.value.__cause__, redis.RedisError | OSError)
        assert caught.value.replicas is None
        assert [entry for entry, _ in raw.xrange(STREAM)] == list(caught.value.ids)
        assert len(monitor.commands("XADD")) == 1
        raw.delete(STREAM)
        raw.set(STREAM, "not a stream")
        for _ in range(3):  # the refusal is followed by the reply to WAIT
            with pytest.raises(QueueRefusedError, match="WRONGTYPE"):
                queue.enqueue({"n": 2})


@pytest.mark.parametrize(
    "options", [{"min_replicas": -1}, {"min_replicas": True}, {"replicas_timeout_ms": 0}]
)
def test_refused_settings(made: Queues, redis_url: str, options: dict[str, Any]) -> None:
    with pytest.raises(QueueConfigError, match=next(iter(options))):
        made.queue(redis_url, **{"min_replicas": 1, **options})
