"""Behind Sentinels: the call that a failover hits raises, and the next call on the same client reaches the new master."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel

from conquiet.embedded import RedisServer
from conquiet.errors import QueueAccessError
from conquiet.queue import QueueConfigError, QueueConnectionError, QueueError, connect, connect_async
from tests.addresses import Address, at_port
from tests.integration.queue.monitor import Monitor
from tests.integration.queue.recording import Recording
from tests.integration.queue.stream import Stream
from tests.integration.queue.variants import STREAM, AsyncVariant, LoopThread, SyncVariant
from tests.topologies import ESCAPED, PASSWORD, SERVICE, Member, Replicated, eventually


@pytest.fixture
def queues(
    variant: str, replicated: Replicated, loop_thread: LoopThread
) -> Iterator[SyncVariant | AsyncVariant]:
    made = SyncVariant(replicated.url) if variant == "sync" else AsyncVariant(replicated.url, loop_thread)
    yield made
    made.close()


def client_of_the_user(queues: Any, replicated: Replicated) -> Any:
    """As redis-py's documentation makes it, with the retries that it has by default."""
    module = redis.sentinel if queues.name == "sync" else redis.asyncio.sentinel
    sentinel = module.Sentinel(replicated.places)
    for one in sentinel.sentinels:
        queues.keep(one)
    return queues.keep(sentinel.master_for(SERVICE, password=PASSWORD))


CLIENTS = pytest.mark.parametrize(
    "make_client", [lambda queues, replicated: queues.client(), client_of_the_user], ids=["ours", "theirs"]
)


def test_everything_works_through_the_url(queues: Any, replicated: Replicated) -> None:
    queue, consumer = queues.queue(), queues.consumer("bob")
    ids = [queue.enqueue({"n": 0}), *queue.enqueue_many([{"n": 1}, {"n": 2}])]
    first, second = consumer.next(1000), consumer.next(1000)
    consumer.ack(first)
    assert [message.id for message in queue.claim_stale(0)] == [second.id]
    queue.ack_if_owner(second)
    recording = Recording()
    consumer.run(handler=lambda message, tx: consumer.stop(), db_factory=recording)
    assert queue.backlog_stats().pending == 0
    assert [entry for entry, _ in replicated.master.raw.xrange(STREAM)] == ids


@pytest.mark.clause("C-14", "S-26")
@CLIENTS
def test_after_a_killed_master_the_next_call_reaches_the_new_one(
    queues: Any, replicated: Replicated, make_client: Callable[[Any, Replicated], Any]
) -> None:
    client = make_client(queues, replicated)
    queue, consumer = queues.queue(client=client), queues.consumer(client=client)
    queue.enqueue({"n": 1})
    assert consumer.next(1000).payload == {"n": 1}
    eventually(lambda: replicated.replicas[0].raw.xlen(STREAM) == 1, "it is replicated")
    replicated.master.kill()
    for call in (lambda: queue.enqueue({"lost": 1}), lambda: consumer.next(100), consumer.backlog_stats):
        with pytest.raises(QueueConnectionError):
            call()
    new = replicated.promoted()
    queue.enqueue({"n": 2})
    assert consumer.next(1000).payload == {"n": 2}
    assert [message.payload for message in consumer.claim_stale(0)] == [{"n": 1}, {"n": 2}]
    assert new.raw.xlen(STREAM) == 2


@pytest.mark.clause("C-14", "S-10")
@CLIENTS
def test_after_a_demotion_one_call_is_refused_and_the_next_works(
    queues: Any, replicated: Replicated, make_client: Callable[[Any, Replicated], Any]
) -> None:
    """The old master lives on as a replica, and keeps its connections."""
    client = make_client(queues, replicated)
    queue, consumer = queues.queue(client=client), queues.consumer(client=client)
    queue.enqueue({"n": 1})
    eventually(lambda: replicated.replicas[0].raw.xlen(STREAM) == 1, "it is replicated")
    old, new = replicated.master, replicated.demote()
    with Monitor(old.url) as monitor:
        with pytest.raises(QueueError, match="(?i)nothing|read only") as caught:
            queue.enqueue({"refused": True})
        assert len(monitor.commands("XADD")) <= 1
    assert "od:d" not in str(caught.value)
    assert queue.enqueue({"n": 2})
    assert [consumer.next(1000).payload, consumer.next(1000).payload] == [{"n": 1}, {"n": 2}]
    assert new.raw.xlen(STREAM) == 2


@pytest.mark.clause("C-14")
@CLIENTS
def test_a_blocking_read_ends_when_its_master_is_demoted(
    queues: Any,
    replicated: Replicated,
    beside: ThreadPoolExecutor,
    make_client: Callable[[Any, Replicated], Any],
) -> None:
    client = make_client(queues, replicated)
    consumer = queues.consumer(client=client)
    reading = beside.submit(consumer.next, 60_000)
    Stream(replicated.master.raw).wait_for_reader()
    new = replicated.demote()
    with pytest.raises(QueueConnectionError):
        reading.result(timeout=30)
    new.raw.xadd(STREAM, {"data": "{}"})
    assert consumer.next(1000) is not None


@pytest.mark.parametrize("connecting", [connect, connect_async], ids=["sync", "async"])
def test_nobody_to_ask_is_said_without_the_password(connecting: Callable[..., Any]) -> None:
    url = f"redis+sentinel://:{ESCAPED}@127.0.0.1:1,localhost:2/orders?sentinel_password=s3cret"
    client = connecting(url)
    assert client.get_retry() is None or client.get_retry()._retries == 0
    shown = repr(client)
    with pytest.raises(redis.ConnectionError) as caught:
        _ = client.ping() if connecting is connect else asyncio.run(client.ping())
    shown += str(caught.value)
    assert "no Sentinel names a master of service 'orders' (127.0.0.1:1: Error 111" in shown
    assert "s3cret" not in shown
    assert "od:d" not in shown


def test_a_service_that_is_not_there(replicated: Replicated, variant: str, loop_thread: LoopThread) -> None:
    made: Any = SyncVariant("") if variant == "sync" else AsyncVariant("", loop_thread)
    with pytest.raises(QueueConnectionError, match="does not know it"):
        made.queue(client=made.client(replicated.url.replace(SERVICE, "other")))
    made.close()
    with pytest.raises(QueueConfigError, match="it names no service"):
        made.client(replicated.url.replace(f"/{SERVICE}/0", ""))


def test_sentinels_with_a_password(replicated: Replicated, queues: Any) -> None:
    for sentinel in replicated.sentinels:
        sentinel.raw.execute_command("ACL", "SETUSER", "default", "resetpass", ">of Sentinels")
    with pytest.raises(QueueAccessError, match="(?i)auth"):
        queues.queue()
    queues.queue(client=queues.client(f"{replicated.url}?sentinel_password=of%20Sentinels")).enqueue({})
    queues.queue(client=queues.client(sentinel_password="of Sentinels")).enqueue({})


def test_a_sentinel_that_is_behind_leads_nobody_to_a_replica(queues: Any, replicated: Replicated) -> None:
    """It still names the old master, which would answer reads with what it has."""
    queues.queue()
    for sentinel in replicated.sentinels:
        sentinel.pause()
    replicated.master.raw.execute_command("REPLICAOF", "127.0.0.1", replicated.replicas[0].port)
    replicated.sentinels[0].resume()
    client = queues.client()
    with pytest.raises(QueueConnectionError, match=r"is not the master any more|down"):
        queues.queue(client=client)
    for sentinel in replicated.sentinels[1:]:
        sentinel.resume()


@pytest.mark.clause("C-14")
def test_a_plain_client_whose_address_was_moved_is_refused_once(
    redis_server: RedisServer, variant: str, loop_thread: LoopThread
) -> None:
    """Every connection that it keeps still leads to the old master."""
    with Member(redis_server.binary) as old, Member(redis_server.binary) as new, Address(old.port) as address:
        url = at_port(old.url, address.port)
        queues: Any = SyncVariant(url) if variant == "sync" else AsyncVariant(url, loop_thread)
        client = queues.client()
        queue, consumer = queues.queue(client=client), queues.consumer(client=client)
        new.raw.xgroup_create(STREAM, "billing", mkstream=True)
        old.raw.execute_command("REPLICAOF", "127.0.0.1", new.port)
        address.move_to(new)
        with pytest.raises(QueueError, match="READONLY|read only"):
            queue.enqueue({"refused": True})
        for number in range(20):
            queue.enqueue({"n": number})
        assert consumer.next(1000).payload == {"n": 0}
        assert new.raw.xlen(STREAM) == 20
        queues.close()
