"""A Redis Cluster: every stream is on one node, and a command goes there, wherever that is by now."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.cluster
import redis.cluster

from conquiet.queue import (
    AsyncQueueConsumer,
    QueueConfigError,
    QueueConnectionError,
    QueueConsumer,
    QueueRefusedError,
    RedisStreamsQueue,
    UnreplicatedEnqueueError,
    connect,
    connect_async,
)
from tests.integration.queue.monitor import Monitor
from tests.integration.queue.stream import Stream
from tests.integration.queue.variants import STREAM, AsyncVariant, LoopThread, SyncVariant, settings
from tests.topologies import ESCAPED, PASSWORD, ClusterOfServers, Member, eventually


class Both:
    """Queues of either variant on a cluster."""

    def __init__(self, variant: str, loop: LoopThread) -> None:
        self.name = variant
        self._kind: Any = SyncVariant("") if variant == "sync" else AsyncVariant("", loop)

    def of(self, cluster: ClusterOfServers) -> Any:
        self._kind.url = cluster.url
        return self._kind

    def close(self) -> None:
        self._kind.close()


@pytest.fixture
def both(variant: str, loop_thread: LoopThread) -> Iterator[Both]:
    made = Both(variant, loop_thread)
    yield made
    made.close()


def client_of_the_user(queues: Any, cluster: ClusterOfServers) -> Any:
    module: Any = redis.cluster if queues.name == "sync" else redis.asyncio.cluster
    return queues.keep(
        module.RedisCluster(
            host="127.0.0.1", port=cluster.masters[0].port, password=PASSWORD, require_full_coverage=False
        )
    )


CLIENTS = pytest.mark.parametrize(
    "make_client", [lambda queues, cluster: queues.client(), client_of_the_user], ids=["ours", "theirs"]
)
STREAMS = ["orders", "b", "{tag}.c", "a{}b", "a}b", "a{b", "{}", "ü{x}y"]


@CLIENTS
def test_everything_works_wherever_the_stream_is(
    both: Both, redis_cluster: ClusterOfServers, make_client: Callable[[Any, ClusterOfServers], Any]
) -> None:
    queues = both.of(redis_cluster)
    client = make_client(queues, redis_cluster)
    for stream in STREAMS:
        queue = queues.queue(client=client, stream_key=stream)
        consumer = queues.consumer("bob", client=client, stream_key=stream)
        with Monitor(redis_cluster.owner(stream)[0].url) as monitor:
            ids = [queue.enqueue({"n": 0}), *queue.enqueue_many([{"n": 1}, {"n": 2}])]
            first, second = consumer.next(1000), consumer.next(1000)
            consumer.ack(first)
            assert [message.id for message in queue.claim_stale(0)] == [second.id]
            queue.ack_if_owner(second)
            assert queue.backlog_stats().lag == 1
            sent = [words[0] for words in monitor.commands() if not words[0].startswith(("lua:", "CLUSTER"))]
        assert sent.count("XADD") == 1  # straight to the node, and once
        assert [entry for entry, _ in redis_cluster.owner(stream)[0].raw.xrange(stream)] == ids


def move_slot(cluster: ClusterOfServers, key: str, *, finish: bool) -> tuple[Member, Member]:
    """Move the key's slot to another master; without `finish` the key has moved, and the slot has not."""
    source, _ = cluster.owner(key)
    target = next(master for master in cluster.masters if master is not source)
    slot = source.raw.execute_command("CLUSTER", "KEYSLOT", key)
    names = {one: one.raw.execute_command("CLUSTER MYID") for one in (source, target)}
    target.raw.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", names[source])
    source.raw.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", names[target])
    source.raw.execute_command(
        *("MIGRATE", "127.0.0.1", target.port, key, 0, 10_000, "REPLACE", "AUTH", PASSWORD)
    )
    if finish:
        for one in (target, source, *cluster.masters):
            one.raw.execute_command("CLUSTER", "SETSLOT", slot, "NODE", names[target])
    return source, target


@CLIENTS
@pytest.mark.parametrize("finish", [True, False], ids=["moved", "moving"])
def test_a_slot_that_moves_is_followed(
    both: Both,
    private_cluster: ClusterOfServers,
    make_client: Callable[[Any, ClusterOfServers], Any],
    finish: bool,
) -> None:
    queues = both.of(private_cluster)
    client = make_client(queues, private_cluster)
    queue, consumer = queues.queue(client=client), queues.consumer(client=client)
    ids = [queue.enqueue({"n": 1})]
    _, target = move_slot(private_cluster, STREAM, finish=finish)
    ids += [queue.enqueue({"n": 2}), *queue.enqueue_many([{"n": 3}])]
    messages = [consumer.next(1000) for _ in ids]
    assert [message.id for message in messages] == ids
    for message in messages:
        consumer.ack(message)
    assert queue.backlog_stats().pending == 0
    if finish:
        assert [entry for entry, _ in target.raw.xrange(STREAM)] == ids


@pytest.mark.clause("C-14", "S-26")
@CLIENTS
def test_after_a_killed_master_the_next_call_reaches_its_replica(
    both: Both,
    private_cluster: ClusterOfServers,
    beside: ThreadPoolExecutor,
    make_client: Callable[[Any, ClusterOfServers], Any],
) -> None:
    queues = both.of(private_cluster)
    client = make_client(queues, private_cluster)
    queue, consumer, reader = (
        queues.queue(client=client),
        queues.consumer(client=client),
        queues.consumer("reader", client=client),
    )
    queue.enqueue({"n": 1})
    assert consumer.next(1000).payload == {"n": 1}
    owner, replica = private_cluster.owner(STREAM)
    assert replica is not None
    eventually(lambda: replica.has_all_of(owner), "it is replicated")
    reading = beside.submit(reader.next, 60_000)
    Stream(owner.raw).wait_for_reader()
    owner.kill()
    with pytest.raises(QueueConnectionError):
        reading.result(timeout=30)
    with pytest.raises(QueueConnectionError):
        queue.enqueue({"lost": 1})
    alive = [one for one in (*private_cluster.masters, *private_cluster.replicas) if one is not owner]
    for member in alive:
        eventually(lambda: member.knows_as_master(replica), "all know the new master")  # noqa: B023
    queue.enqueue({"n": 2})
    assert consumer.next(1000).payload == {"n": 2}
    assert replica.raw.xlen(STREAM) == 2


def test_a_planned_failover_is_followed(both: Both, private_cluster: ClusterOfServers) -> None:
    queues = both.of(private_cluster)
    queue = queues.queue()
    queue.enqueue({"n": 1})
    _, replica = private_cluster.owner(STREAM)
    assert replica is not None
    replica.raw.execute_command("CLUSTER", "FAILOVER")
    eventually(lambda: replica.role == "master", "it is the master")
    queue.enqueue({"n": 2})
    assert replica.raw.xlen(STREAM) == 2


def test_replicas_confirm(private_cluster: ClusterOfServers) -> None:
    with connect(private_cluster.url) as client:
        queue = RedisStreamsQueue(client, settings(), min_replicas=1, replicas_timeout_ms=30_000)
        owner, replica = private_cluster.owner(STREAM)
        assert replica is not None
        entry_id = queue.enqueue({"n": 1})
        assert [entry for entry, _ in owner.raw.xrange(STREAM)] == [entry_id]
        impatient = RedisStreamsQueue(client, settings(), min_replicas=2, replicas_timeout_ms=10)
        with pytest.raises(UnreplicatedEnqueueError, match="1 of 2 replicas"):
            impatient.enqueue({"n": 2})


def test_a_plain_client_of_a_node_is_told_what_to_use(both: Both, redis_cluster: ClusterOfServers) -> None:
    queues = both.of(redis_cluster)
    owner, _ = redis_cluster.owner(STREAM)
    other = next(master for master in redis_cluster.masters if master is not owner)
    with pytest.raises(QueueRefusedError, match=r"MOVED .*connect with redis\+cluster://") as caught:
        queues.queue(client=queues.client(other.url))
    assert caught.value.code == "MOVED"


def test_a_client_of_the_other_kind_is_refused(redis_cluster: ClusterOfServers) -> None:
    with (
        connect(redis_cluster.url) as client,
        pytest.raises(QueueConfigError, match="redis.asyncio.Redis client"),
    ):
        AsyncQueueConsumer(client, settings())
    with pytest.raises(QueueConfigError, match="redis.Redis client"):
        QueueConsumer(connect_async(redis_cluster.url), settings())  # type: ignore[arg-type]


def test_nobody_there_is_said_without_the_password(both: Both) -> None:
    url = f"redis+cluster://:{ESCAPED}@127.0.0.1:1,127.0.0.1:2"
    queues = both._kind
    with pytest.raises(QueueConnectionError) as caught:
        queues.queue(client=queues.client(url))
    shown = f"{caught.value}{caught.value.__cause__!r}"
    assert "od:d" not in shown
    assert ESCAPED not in shown
    with pytest.raises(QueueConfigError, match="unexpected keyword|is not a usable"):
        queues.queue(client=queues.client(url, no_such_option=1))
