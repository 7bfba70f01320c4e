"""What a failover loses: masters are killed or replaced in the middle of acknowledged enqueues.

Replication is asynchronous. On the loopback interface a replica is a fraction of a millisecond behind; a link that is
20 ms slower stands for another data centre, or a busy replica.
"""

from __future__ import annotations

import random
import select
import socket
import time
from collections import deque
from contextlib import ExitStack
from typing import NamedTuple

import pytest
from redis.exceptions import ResponseError

from conquiet.embedded import RedisServer
from conquiet.queue import RedisStreamsQueue, UnreplicatedEnqueueError, connect
from conquiet.verify.proxy import Relay
from tests import campaign
from tests.campaign import campaign_size
from tests.faults.figures import Record, percentiles
from tests.faults.queue.producers import CONFIG, PatientProducers, Producers, stored
from tests.topologies import SERVICE, ClusterOfServers, Member, Replicated, eventually

LAG = 0.02


class SlowLink(Relay):
    """Passes what the master sends to a replica `LAG` seconds later; what is under way when the master dies is lost."""

    lag = LAG

    def pass_on(self, client: socket.socket, server: socket.socket) -> None:
        held: deque[tuple[float, bytes]] = deque()
        while True:
            wait = max(0.0, held[0][0] - time.monotonic()) if held else None
            for end in select.select((client, server), (), (), wait)[0]:
                data = end.recv(1 << 16)
                if not data:
                    return
                if end is client:
                    server.sendall(data)
                else:
                    held.append((time.monotonic() + self.lag, data))
            while held and held[0][0] <= time.monotonic():
                client.sendall(held.popleft()[1])


@pytest.mark.campaign
@pytest.mark.timeout(900)
@pytest.mark.parametrize("min_replicas", [0, 1])
@pytest.mark.parametrize("slow", [False, True], ids=["loopback", "slow link"])
def test_acknowledged_enqueues_at_a_killed_master(
    redis_server: RedisServer, record_figure: Record, min_replicas: int, slow: bool
) -> None:
    kills, seed = campaign_size(40), random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    acknowledged = lost = unconfirmed = survived = hit = 0
    outages: list[float] = []
    for _ in range(kills):
        with ExitStack() as stack:

            def link(port: int, stack: ExitStack = stack) -> int:
                return stack.enter_context(SlowLink(port)).port if slow else port

            service = stack.enter_context(Replicated(redis_server.binary, link=link))
            producers = Producers(service.url, min_replicas)
            stack.callback(producers.stop)
            # From here on by chance, but not before something was acknowledged.
            eventually(lambda: len(producers.acknowledged) > 20, "enqueues")  # noqa: B023
            time.sleep(chance.uniform(0, 0.2))
            producers.struck = time.monotonic()
            service.master.kill()
            new = service.promoted()
            producers.join()
            outages += [moment - producers.struck for moment in producers.after]
            there = stored(new)
        gone = set(producers.acknowledged) - there
        acknowledged += len(producers.acknowledged)
        lost += len(gone)
        hit += bool(gone)
        unconfirmed += len(producers.unconfirmed)
        survived += len(there.intersection(producers.unconfirmed))
    where = "replica 20 ms behind" if slow else "replica on loopback"
    record_figure(
        f"{redis_server.flavour}: master killed, {where}, min_replicas={min_replicas}",
        n=acknowledged,
        lost=lost,
        kills=kills,
        kills_with_losses=hit,
        unconfirmed=f"{unconfirmed} ({survived} of them survived)",
        enqueues_resumed_after=percentiles(outages),
    )
    assert len(outages) == 2 * kills  # every client went on by itself
    if min_replicas:
        assert lost == 0


class Planned(NamedTuple):
    replicas: int
    min_replicas: int
    min_replicas_to_write: int = 0
    options: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        said = [f"{self.replicas} replica{'s' * (self.replicas > 1)}", f"min_replicas={self.min_replicas}"]
        if self.min_replicas_to_write:
            said.append(f"min-replicas-to-write {self.min_replicas_to_write}, max-lag 10")
        return ", ".join((*said, *self.options))

    @property
    def keeps_all(self) -> bool:
        return self.min_replicas == self.replicas or "COORDINATED" in self.options


PLANNED = [
    Planned(1, 0),
    Planned(1, 1),
    Planned(1, 0, 1),
    Planned(2, 1),
    Planned(2, 2),
    Planned(1, 0, options=("COORDINATED",)),
]


class Tally:
    """What a number of planned failovers did to enqueues."""

    def __init__(self) -> None:
        self.acknowledged = self.lost = self.most = self.unconfirmed = self.survived = 0
        self.pauses: list[float] = []

    def add(self, producers: PatientProducers, new: Member) -> None:
        there = stored(new)
        lost = len(set(producers.acknowledged) - there)
        self.acknowledged += len(producers.acknowledged)
        self.lost += lost
        self.most = max(self.most, lost)
        self.unconfirmed += len(producers.unconfirmed)
        self.survived += len(there.intersection(producers.unconfirmed))
        self.pauses += producers.pauses

    def record(self, record_figure: Record, fault: str, failovers: int) -> None:
        record_figure(
            fault,
            n=self.acknowledged,
            lost=self.lost,
            failovers=failovers,
            most_in_one=self.most,
            unconfirmed=f"{self.unconfirmed} ({self.survived} of them survived)",
            longest_pause=percentiles(self.pauses),
        )


@pytest.mark.campaign
@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", PLANNED, ids=lambda case: case.name)
def test_acknowledged_enqueues_at_a_planned_failover(
    redis_server: RedisServer, record_figure: Record, case: Planned
) -> None:
    """SENTINEL FAILOVER promotes the replica first and tells the master last, which takes enqueues until then."""
    failovers, tally = campaign_size(10), Tally()
    for _ in range(failovers):
        with ExitStack() as stack:
            service = stack.enter_context(Replicated(redis_server.binary, replicas=case.replicas))
            if not campaign.FULL:
                service.hurry()
            for one in (service.master, *service.replicas):
                one.raw.config_set("min-replicas-to-write", case.min_replicas_to_write)
            producers = PatientProducers(service.url, case.min_replicas)
            stack.callback(producers.stop)
            eventually(lambda: len(producers.acknowledged) > 20, "enqueues")  # noqa: B023
            try:
                service.sentinels[0].raw.execute_command("SENTINEL", "FAILOVER", SERVICE, *case.options)
            except ResponseError:
                assert case.options  # Valkey 9 is the first that knows it
                assert redis_server.flavour != "valkey"
                return
            new = service.promoted()
            for one in (service.master, *service.replicas):
                if one is not new:
                    eventually(lambda: one.follows_port == new.port, "all follow the new master")  # noqa: B023
            producers.finished.set()
            producers.join()
            tally.add(producers, new)
    tally.record(record_figure, f"{redis_server.flavour}: planned failover, {case.name}", failovers)
    assert len(tally.pauses) == 2 * failovers  # every client went on by itself
    if case.keeps_all:
        assert tally.lost == 0
    elif case == PLANNED[0]:
        assert tally.lost > 0  # what the page says; and the test can see a loss


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_acknowledged_enqueues_at_a_planned_failover_of_a_cluster(
    redis_server: RedisServer, record_figure: Record
) -> None:
    """CLUSTER FAILOVER stops the master first, and waits until its replica has everything."""
    failovers, tally = campaign_size(10), Tally()
    for _ in range(failovers):
        with ExitStack() as stack:
            cluster = stack.enter_context(ClusterOfServers(redis_server.binary, replicas=True))
            old, new = cluster.owner(CONFIG.stream_key)
            assert new is not None
            producers = PatientProducers(cluster.url, 0)
            stack.callback(producers.stop)
            eventually(lambda: len(producers.acknowledged) > 500, "enqueues")  # noqa: B023
            new.raw.execute_command("CLUSTER", "FAILOVER")
            eventually(lambda: old.follows_port == new.port, "the old master follows")  # noqa: B023
            producers.finished.set()
            producers.join()
            tally.add(producers, new)
    tally.record(record_figure, f"{redis_server.flavour}: planned failover of a cluster", failovers)
    assert tally.lost == 0


def test_an_acknowledged_enqueue_is_lost_or_known_to_be_in_doubt(redis_server: RedisServer) -> None:
    """What the campaign measures, made certain: nothing passes from the master to its replica any more."""
    links: list[SlowLink] = []
    with ExitStack() as stack:

        def link(port: int) -> int:
            links.append(stack.enter_context(SlowLink(port)))
            return links[0].port

        service = stack.enter_context(Replicated(redis_server.binary, link=link))
        client = stack.enter_context(connect(service.url))
        safe = RedisStreamsQueue(client, CONFIG, min_replicas=1, replicas_timeout_ms=30_000)
        kept = safe.enqueue({"n": 1})
        links[0].lag = 1_000.0
        lost = RedisStreamsQueue(client, CONFIG).enqueue({"n": 2})
        doubtful = RedisStreamsQueue(client, CONFIG, min_replicas=1, replicas_timeout_ms=50)
        with pytest.raises(UnreplicatedEnqueueError) as caught:
            doubtful.enqueue({"n": 3})
        assert [entry for entry, _ in service.master.raw.xrange(CONFIG.stream_key)] == [
            *(kept, lost, *caught.value.ids)
        ]
        service.master.kill()
        new = service.promoted()
        assert [entry for entry, _ in new.raw.xrange(CONFIG.stream_key)] == [kept]


def test_a_read_that_is_lost_is_a_redelivery(redis_server: RedisServer) -> None:
    """An acknowledgement or a delivery that the replica does not know yet: the message comes again, and is not lost."""
    links = []
    with ExitStack() as stack:

        def link(port: int) -> int:
            links.append(stack.enter_context(SlowLink(port)))
            return links[-1].port

        service = stack.enter_context(Replicated(redis_server.binary, link=link))
        client = stack.enter_context(connect(service.url))
        queue = RedisStreamsQueue(client, CONFIG, min_replicas=1, replicas_timeout_ms=30_000)
        ids = queue.enqueue_many([{"n": n} for n in range(100)])
        for one in links:
            one.lag = 3600.0  # from here on the replica learns nothing, however slow this machine is
        queue.ack_many(queue.read(1_000, 100))
        service.master.kill()
        service.promoted()
        # The replica may know the deliveries without the acknowledgements, or neither.
        again = {message.id for message in queue.read(100, 100)} | {
            message.id for message in queue.claim_stale(0, 100)
        }
        assert again == set(ids)
        assert queue.backlog_stats().length == 100
