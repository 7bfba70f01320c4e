"""The keeper on a real Redis, without Spark: what it claims, refreshes and settles, and when."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from redis import Redis

from conquiet.errors import QueueConnectionError, QueueError
from conquiet.queue import QueueConfig, RedisStreamsQueue, connect
from conquiet.spark.source.blocks import Block, entries_in
from conquiet.spark.source.keeper import Keeper
from conquiet.spark.source.ledger import Claim, Ledger

Make = Callable[..., Keeper]


@pytest.fixture
def redis(one_redis: str) -> Iterator[Redis]:
    with connect(one_redis) as client:
        yield client


@pytest.fixture
def make(one_redis: str) -> Iterator[Make]:
    with ExitStack() as stack:

        def make(ahead: int = 0, heartbeat: float = 60.0, block_entries: int = 10) -> Keeper:
            client = stack.enter_context(connect(one_redis))
            ledger = Ledger(client, "s", "g", "c", "q")
            keeper = Keeper(ledger, block_entries=block_entries, ahead=ahead, heartbeat=heartbeat)
            stack.callback(keeper.close)
            return keeper

        yield make


def fill(redis: Redis, count: int) -> None:
    RedisStreamsQueue(redis, QueueConfig("s", "g", "producer")).enqueue_many([{"n": n} for n in range(count)])


def lapse(redis: Redis) -> None:
    """The owner is as good as dead: its leases are over."""
    assert redis.delete(*redis.scan_iter("*:lease"))


def pending(redis: Redis) -> int:
    return int(redis.xpending("s", "g")["pending"])


def eventually(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.clause("P-02")
def test_nothing_is_acknowledged_before_it_is_committed(redis: Redis, make: Make) -> None:
    fill(redis, 50)
    keeper = make()
    batch = keeper.next_batch(30, "")
    assert entries_in(batch) == 30
    keeper.run(batch, "")
    keeper.settle()
    assert pending(redis) == 30
    keeper.commit(batch)
    keeper.settle()
    assert pending(redis) == 0


def test_the_next_batch_is_claimed_while_this_one_runs_and_no_more(redis: Redis, make: Make) -> None:
    fill(redis, 100)
    keeper = make(ahead=30)
    batch = keeper.next_batch(30, "")
    assert pending(redis) == 30
    keeper.run(batch, "")
    eventually(lambda: pending(redis) == 60)
    keeper.commit(batch)
    following = keeper.next_batch(30, "")
    assert following[0].lo > batch[-1].hi
    keeper.settle()
    assert pending(redis) == 30


@pytest.mark.clause("P-03")
def test_a_successor_goes_on_where_the_checkpoint_ends(redis: Redis, make: Make) -> None:
    fill(redis, 60)
    first = make()
    one = first.next_batch(20, "")
    first.commit(one[:1])  # only this much reaches Redis before the driver dies
    first.settle()
    two_and_more = first.next_batch(50, "")
    lapse(redis)
    second = make()
    second.commit(one)
    assert second.next_batch(50, "") == [block for block in two_and_more if block not in one]
    first.commit(two_and_more)
    with pytest.raises(QueueError, match="another query has started"):
        first.settle()


def test_blocks_of_a_long_batch_are_kept_fresh(redis: Redis, make: Make) -> None:
    fill(redis, 20)
    keeper = make(heartbeat=0.2)
    batch = keeper.next_batch(20, "")
    keeper.run(batch, "")
    recovery = RedisStreamsQueue(redis, QueueConfig("s", "g", "recovery"))
    deadline = time.monotonic() + 4.0
    while time.monotonic() < deadline:
        assert recovery.claim_stale(3_000, 100) == []  # a busy machine may hang for a second or two
        time.sleep(0.05)
    keeper.close()
    stale: set[str] = set()  # blocks are refreshed one after the other, and may become stale in that order

    def all_are_stale() -> bool:
        stale.update(message.id for message in recovery.claim_stale(3_000, 100))
        return len(stale) == 20

    eventually(all_are_stale)


@pytest.mark.clause("P-03")
def test_a_block_whose_claim_was_not_answered_is_not_passed_over(
    redis: Redis, one_redis: str, make: Make
) -> None:
    """The ledger has a block that the keeper does not know: if the keeper went on, it would count as committed."""

    class AnswerLost(Ledger):
        def claim(self, count: int, bound: str = "") -> Claim | None:
            super().claim(count, bound)
            raise QueueConnectionError("the answer did not arrive")

    fill(redis, 20)
    before = make()
    batch = before.next_batch(10, "")
    before.close()
    with connect(one_redis) as client:
        keeper = Keeper(AnswerLost(client, "s", "g", "c", "q"), block_entries=10, ahead=10, heartbeat=60.0)
        keeper.run(batch, "")
        eventually(lambda: pending(redis) == 20)
        eventually(lambda: keeper._failure is not None)
        with pytest.raises(QueueConnectionError):
            keeper.commit(batch)
        keeper.close()
    successor = make()
    successor.commit(batch)
    assert entries_in(successor.next_batch(100, "")) == 10


def test_a_settling_that_fails_for_a_moment_is_done_later(redis: Redis, one_redis: str) -> None:
    class Interrupted(Ledger):
        tries = 0

        def settle(self, block: Block) -> int:
            self.tries += 1
            if self.tries == 1:
                raise QueueConnectionError("not now")
            return super().settle(block)

    fill(redis, 20)
    with connect(one_redis) as client:
        ledger = Interrupted(client, "s", "g", "c", "q")
        keeper = Keeper(ledger, block_entries=10, ahead=0, heartbeat=0.1)
        batch = keeper.next_batch(20, "")
        keeper.commit(batch)
        eventually(lambda: pending(redis) == 0)
        keeper.close()
    assert ledger.tries == len(batch) + 1


def test_large_entries_are_claimed_in_small_blocks(redis: Redis, make: Make) -> None:
    redis.xgroup_create("s", "g", id="0-0", mkstream=True)
    for _ in range(70):
        redis.xadd("s", {"data": "x" * 500_000})
    batch = make(block_entries=5_000).next_batch(70, "")
    assert [block.count for block in batch] == [50, 8, 8, 4]  # about 4 MB, once their size is known
