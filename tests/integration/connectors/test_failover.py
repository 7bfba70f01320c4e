"""The Consumer Engine over a failover: its fetch attempts bridge it, on the same client."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from conquiet.queue import QueueConfig, RedisStreamsQueue, connect
from conquiet.task import StopReason, Transaction
from conquiet.task.mixins.policies import (
    BatchPolicy,
    ConcurrencyPolicy,
    ConsumerLoopPolicy,
    ConsumerPolicy,
    ConsumerSteps,
    FetchPolicy,
    RetryPolicy,
)
from tests.integration.connectors.variants import Consumer
from tests.topologies import ClusterOfServers, Member, Replicated, eventually

POLICY = ConsumerPolicy(
    loop=ConsumerLoopPolicy(
        batch=BatchPolicy(size=1), concurrency=ConcurrencyPolicy(value=1), streaming=True, limit=4
    ),
    steps=ConsumerSteps(
        fetch=FetchPolicy(retry=RetryPolicy(max_attempts=600, backoff=0.1, backoff_multiplier=1.0))
    ),
)


def consumed_over(
    url: str,
    config: QueueConfig,
    variant: str,
    master: Member,
    replica: Member,
    fail_over: Callable[[], None],
) -> list[int]:
    """Two messages before the failover and two after it; what the engine has processed."""
    with connect(url) as redis:
        RedisStreamsQueue(redis, config).enqueue_many([{"n": 0}, {"n": 1}])
    seen: list[int] = []

    def strike() -> None:
        eventually(lambda: len(seen) == 2 and at_rest(master, config), "the first two are acknowledged")
        eventually(lambda: replica.has_all_of(master), "the replica knows that")
        fail_over()
        with connect(url) as redis:
            RedisStreamsQueue(redis, config).enqueue_many([{"n": 2}, {"n": 3}])

    beside = threading.Thread(target=strike)
    beside.start()
    report = Consumer(variant, lambda transaction: note(seen, transaction)).on_stream(url, config, POLICY)
    beside.join()
    assert (report.stop_reason, report.succeeded) == (StopReason.LIMIT, 4)
    return seen


def note(seen: list[int], transaction: Transaction) -> None:
    seen.append(transaction.payload["n"])


def at_rest(member: Member, config: QueueConfig) -> bool:
    found = member.raw.xinfo_groups(config.stream_key)
    return bool(found[0]["pending"] == 0)


@pytest.mark.clause("C-14")
def test_the_engine_goes_on_behind_sentinels(
    replicated: Replicated, config: QueueConfig, variant: str
) -> None:
    def fail_over() -> None:
        replicated.master.kill()
        replicated.promoted()

    (replica,) = replicated.replicas
    seen = consumed_over(replicated.url, config, variant, replicated.master, replica, fail_over)
    assert seen == [0, 1, 2, 3]


@pytest.mark.clause("C-14")
def test_the_engine_goes_on_in_a_cluster(
    private_cluster: ClusterOfServers, config: QueueConfig, variant: str
) -> None:
    owner, replica = private_cluster.owner(config.stream_key)
    assert replica is not None

    def fail_over() -> None:
        owner.kill()
        eventually(lambda: replica.role == "master", "the replica is the master")
        others = [one for one in (*private_cluster.masters, *private_cluster.replicas) if one is not owner]
        for member in others:
            eventually(lambda: member.knows_as_master(replica), "all know it")  # noqa: B023

    seen = consumed_over(private_cluster.url, config, variant, owner, replica, fail_over)
    assert seen == [0, 1, 2, 3]
