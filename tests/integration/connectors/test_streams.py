"""Redis Streams through the engine: what is acknowledged, what stays pending."""

from __future__ import annotations

from typing import Any

import pytest

from conquiet.queue import QueueConfig, RedisStreamsQueue, connect
from conquiet.task import StopReason, Transaction
from conquiet.task.exceptions import ExceptionCategory, FetchException, SettleException, TransactionException
from conquiet.task.mixins.policies import ConsumerPolicy, ConsumerSteps, FetchPolicy
from tests.integration.connectors.variants import Consumer, policy

pytestmark = pytest.mark.clause("E-34")


def filled(url: str, config: QueueConfig, count: int) -> list[str]:
    with connect(url) as redis:
        return RedisStreamsQueue(redis, config).enqueue_many([{"n": n} for n in range(count)])


def pending(url: str, config: QueueConfig) -> list[str]:
    with connect(url) as redis:
        found: Any = redis.xpending_range(config.stream_key, config.consumer_group, "-", "+", 1_000)
        return [entry["message_id"].decode() for entry in found]


def test_each_message_is_processed_once_and_acknowledged(
    redis_url: str, config: QueueConfig, variant: str
) -> None:
    ids, seen = filled(redis_url, config, 250), []
    report = Consumer(variant, lambda tx: seen.append((tx.id, tx.payload["n"]))).on_stream(
        redis_url, config, policy(batch=100, concurrency=8)
    )
    assert sorted(seen, key=lambda one: one[1]) == list(zip(ids, range(250), strict=True))
    assert (report.fetched, report.succeeded, report.stop_reason) == (250, 250, StopReason.DRAINED)
    assert pending(redis_url, config) == []


def test_handled_business_failures_are_acknowledged_and_everything_else_stays_pending(
    redis_url: str, config: QueueConfig, variant: str
) -> None:
    def process(tx: Transaction) -> None:
        match tx.payload["n"]:
            case 1 | 2:
                raise TransactionException("no such account", ExceptionCategory.BUSINESS)
            case 3:
                raise TransactionException("later", ExceptionCategory.TIMEOUT)
            case 4:
                raise ValueError("broken")

    def handle(tx: Transaction, exception: Any) -> None:
        if tx.payload["n"] == 2:
            raise RuntimeError("the handler fails")

    ids = filled(redis_url, config, 6)
    report = Consumer(variant, process, handle).on_stream(redis_url, config, policy())
    assert (report.succeeded, report.failed, report.unsettled) == (2, 4, 0)
    assert pending(redis_url, config) == [ids[2], ids[3], ids[4]]


def test_the_fetch_waits_as_long_as_the_policy_says(
    redis_url: str, config: QueueConfig, variant: str
) -> None:
    filled(redis_url, config, 1)
    report = Consumer(variant).on_stream(redis_url, config, policy(), block_ms=20)
    assert report.succeeded == 1


def test_a_malformed_entry_ends_the_loop_after_the_good_ones(
    redis_url: str, config: QueueConfig, variant: str
) -> None:
    filled(redis_url, config, 2)
    with connect(redis_url) as redis:
        bad = redis.xadd(config.stream_key, {"wrong": "1"}).decode()
    with pytest.raises(FetchException, match=bad) as caught:
        Consumer(variant).on_stream(redis_url, config, policy())
    assert caught.value.report is not None
    assert (caught.value.report.fetched, caught.value.report.succeeded) == (2, 2)
    assert pending(redis_url, config) == [bad]


def test_or_goes_where_the_user_says(redis_url: str, config: QueueConfig, variant: str) -> None:
    filled(redis_url, config, 2)
    with connect(redis_url) as redis:
        bad = redis.xadd(config.stream_key, {"wrong": "1"}).decode()
    met = []
    report = Consumer(variant).on_stream(redis_url, config, policy(), on_malformed=lambda e: met.append(e.id))
    assert (report.succeeded, met, pending(redis_url, config)) == (2, [bad], [])


def test_an_acknowledgement_that_fails_ends_the_loop_and_is_reported(
    redis_url: str, config: QueueConfig, variant: str
) -> None:
    ids = filled(redis_url, config, 3)

    def process(tx: Transaction) -> None:
        if tx.payload["n"] == 0:
            with connect(redis_url) as redis:  # from here on the key has the wrong type
                redis.delete(config.stream_key)
                redis.set(config.stream_key, "not a stream")

    with pytest.raises(SettleException, match=ids[0]) as caught:
        Consumer(variant, process).on_stream(redis_url, config, policy(concurrency=1, limit=3))
    report = caught.value.report
    assert report is not None
    assert (report.fetched, report.succeeded, report.unsettled) == (3, 0, 3)
    assert sorted(outcome.transaction_id for outcome in report.outcomes) == ids


def test_a_wait_of_0_is_refused_and_not_taken_for_the_default(
    redis_url: str, config: QueueConfig, variant: str
) -> None:
    """BLOCK 0 would wait for ever, and the loop could not be stopped."""
    limits = ConsumerPolicy(steps=ConsumerSteps(fetch=FetchPolicy(extra={"block_ms": 0})))
    with pytest.raises(FetchException, match="block_ms must be"):
        Consumer(variant).on_stream(redis_url, config, limits)


@pytest.mark.parametrize("taken", [1, 2])
def test_fenced_it_does_not_acknowledge_what_others_have_taken_over(
    redis_url: str, config: QueueConfig, variant: str, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conquiet.task.settlement._LINGER", 60.0)  # all three are settled in one call
    ids = filled(redis_url, config, 3)

    def process(tx: Transaction) -> None:
        if tx.payload["n"] == 0:
            with connect(redis_url) as redis:
                redis.xclaim(config.stream_key, config.consumer_group, "rescuer", 0, ids[:taken], justid=True)

    with pytest.raises(SettleException) as caught:
        Consumer(variant, process).on_stream(
            redis_url, config, policy(concurrency=1, limit=3, batch=3), fenced=True
        )
    assert all(entry in str(caught.value) for entry in ids[:taken])
    assert pending(redis_url, config) == ids[:taken]
