"""The ledger's atomic steps, on every available Redis."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

from conquiet.errors import GroupLostError, QueueError
from conquiet.queue import QueueConfig, RedisStreamsQueue, connect
from conquiet.spark.source.blocks import Block
from conquiet.spark.source.ledger import Claim, Ledger, losses_key

STREAM, GROUP, CONSUMER = "reports", "spark", "query-1"
QUERY = "4a6f"
LEDGER = f"{{reports}}:conquiet-ledger:spark:{QUERY}"


@pytest.fixture
def redis(redis_url: str) -> Iterator[Redis]:
    with connect(redis_url) as client:
        yield client


@pytest.fixture
def ledger(redis: Redis) -> Ledger:
    ledger = Ledger(redis, STREAM, GROUP, CONSUMER, QUERY)
    assert ledger.open() == []
    return ledger


def add(redis: Redis, *ids: str) -> None:
    for entry_id in ids:
        redis.xadd(STREAM, {"data": "{}"}, id=entry_id)


def lapse(redis: Redis) -> None:
    """The owner is as good as dead: its leases are over."""
    assert redis.delete(*redis.scan_iter("*:lease"))


def pending(redis: Redis) -> list[str]:
    return [row["message_id"].decode() for row in redis.xpending_range(STREAM, GROUP, "-", "+", 1_000)]


@pytest.mark.clause("P-01", "P-03")
def test_what_is_claimed_is_pending_and_in_the_ledger(redis: Redis, ledger: Ledger) -> None:
    add(redis, "1-1", "1-2", "2-1")
    assert ledger.claim(2) == Claim(Block("1-1", "1-2", 2), 12, 0)
    assert ledger.claim(2) == Claim(Block("2-1", "2-1", 1), 6, 0)
    assert ledger.claim(2) is None
    assert redis.lrange(LEDGER, 0, -1) == [b"1-1,1-2,2", b"2-1,2-1,1"]
    assert pending(redis) == ["1-1", "1-2", "2-1"]


def test_settling_acknowledges_one_block_and_strikes_it_out(redis: Redis, ledger: Ledger) -> None:
    add(redis, *(f"1-{n}" for n in range(1, 3_001)))
    first, second = ledger.claim(2_500), ledger.claim(2_500)
    assert first is not None
    assert second is not None
    assert ledger.settle(first.block) == 2_500
    assert pending(redis) == [f"1-{n}" for n in range(2_501, 3_001)]
    assert redis.lrange(LEDGER, 0, -1) == [b"1-2501,1-3000,500"]
    assert ledger.settle(first.block) == 0  # a repetition changes nothing
    assert redis.llen(LEDGER) == 1


@pytest.mark.clause("P-03")
def test_whoever_opens_next_holds_the_same_blocks_and_the_last_one_nothing(
    redis: Redis, ledger: Ledger
) -> None:
    add(redis, "1-1", "1-2")
    claimed = ledger.claim(1)
    assert claimed is not None
    lapse(redis)
    successor = Ledger(redis, STREAM, GROUP, CONSUMER, QUERY)
    assert successor.open() == [claimed.block]
    for step in (
        lambda: ledger.claim(1),
        lambda: ledger.settle(claimed.block),
        lambda: ledger.refresh(claimed.block, 0),
    ):
        with pytest.raises(QueueError, match="another query has started to read"):
            step()
    assert pending(redis) == ["1-1"]
    assert redis.lrange(LEDGER, 0, -1) == [b"1-1,1-1,1"]
    assert successor.claim(1) == Claim(Block("1-2", "1-2", 1), 6, 0)


def test_nothing_after_the_bound_is_claimed(redis: Redis, ledger: Ledger) -> None:
    add(redis, "1-1", "1-2", "1-3")
    bound = ledger.last_id()
    assert bound == "1-3"
    add(redis, "1-4", "1-5")
    assert [ledger.claim(2, bound), ledger.claim(2, bound), ledger.claim(2, bound)] == [
        Claim(Block("1-1", "1-2", 2), 12, 0),
        Claim(Block("1-3", "1-3", 1), 6, 0),
        None,
    ]
    assert ledger.claim(2) == Claim(Block("1-4", "1-5", 2), 12, 0)
    assert ledger.claim(2, bound) is None  # the group is past it


@pytest.mark.clause("P-04")
def test_competing_consumers_share_the_entries(redis: Redis, ledger: Ledger) -> None:
    queue = RedisStreamsQueue(redis, QueueConfig(STREAM, GROUP, "plain"))
    add(redis, *(f"1-{n}" for n in range(1, 101)))
    ours: list[str] = []
    theirs: list[str] = []
    chance = random.Random(7)
    while len(ours) + len(theirs) < 100:
        if chance.random() < 0.5:
            claim = ledger.claim(chance.randint(1, 9))
            if claim is not None:
                ours += [one.decode() for one, _ in redis.xrange(STREAM, claim.block.lo, claim.block.hi)]
        else:
            theirs += [message.id for message in queue.read(1, chance.randint(1, 9))]
    assert sorted([*ours, *theirs]) == sorted(f"1-{n}" for n in range(1, 101))
    assert ours
    assert theirs


def test_refreshing_keeps_own_entries_from_recovery_and_counts_no_delivery(
    redis: Redis, ledger: Ledger
) -> None:
    add(redis, "1-1", "1-2", "1-3")
    claim = ledger.claim(3)
    assert claim is not None
    redis.xclaim(STREAM, GROUP, CONSUMER, 0, ["1-1", "1-2"], idle=60_000, justid=True)
    redis.xclaim(STREAM, GROUP, "thief", 0, ["1-2"], idle=60_000, justid=True)
    assert ledger.refresh(claim.block, 30_000) == 1
    rows: dict[Any, Any] = {
        row["message_id"]: row for row in redis.xpending_range(STREAM, GROUP, "-", "+", 10)
    }
    assert rows[b"1-1"]["time_since_delivered"] < 30_000
    assert rows[b"1-1"]["times_delivered"] == 1
    assert rows[b"1-2"]["consumer"] == b"thief"
    assert rows[b"1-2"]["time_since_delivered"] >= 60_000


def test_a_group_that_was_removed_is_told_and_not_made_anew(redis: Redis, ledger: Ledger) -> None:
    add(redis, "1-1")
    ledger.claim(1)
    redis.xgroup_destroy(STREAM, GROUP)
    with pytest.raises(GroupLostError):
        ledger.claim(1)
    with pytest.raises(GroupLostError, match="holds claimed blocks of a group that is gone"):
        ledger.open()
    redis.delete(STREAM)
    with pytest.raises(GroupLostError):
        ledger.claim(1)


def test_nor_is_it_for_a_query_that_has_settled_everything(redis: Redis, ledger: Ledger) -> None:
    add(redis, "1-1")
    claim = ledger.claim(1)
    assert claim is not None
    ledger.settle(claim.block)
    redis.xgroup_destroy(STREAM, GROUP)
    with pytest.raises(GroupLostError, match="a new one would deliver everything again"):
        ledger.open()
    redis.xgroup_create(STREAM, GROUP, "1-1")  # where it was
    assert ledger.open() == []
    assert ledger.claim(1) is None


def test_of_a_stream_that_is_gone_too_nothing_comes_again(redis: Redis, ledger: Ledger) -> None:
    add(redis, "1-1")
    claim = ledger.claim(1)
    assert claim is not None
    ledger.settle(claim.block)
    redis.delete(STREAM)
    assert ledger.open() == []
    add(redis, "2-1")
    assert ledger.claim(1) == Claim(Block("2-1", "2-1", 1), 6, 0)


def test_entries_trimmed_before_anybody_got_them_are_counted_once(redis: Redis, ledger: Ledger) -> None:
    add(redis, *(f"1-{n}" for n in range(1, 21)))
    assert ledger.claim(5) == Claim(Block("1-1", "1-5", 5), 30, 0)
    redis.xtrim(STREAM, maxlen=8, approximate=False)  # 1-6 to 1-12 are gone
    assert ledger.claim(4) == Claim(Block("1-13", "1-16", 4), 24, 7)
    assert ledger.claim(2) == Claim(Block("1-17", "1-18", 2), 12, 0)
    redis.xtrim(STREAM, maxlen=1, approximate=False)  # 1-19
    assert ledger.claim(2) == Claim(Block("1-20", "1-20", 1), 6, 1)
    assert ledger.lost() == 8
    assert redis.hgetall(losses_key(STREAM, GROUP, QUERY)) == {b"before 1-13": b"7", b"before 1-20": b"1"}


@pytest.mark.parametrize("seed", range(20))
def test_losses_are_counted_right_whatever_is_read_and_trimmed(
    redis: Redis, ledger: Ledger, seed: int
) -> None:
    """Against a model: lost = added - delivered - still there."""
    chance = random.Random(seed)
    queue = RedisStreamsQueue(redis, QueueConfig(STREAM, GROUP, "plain"))
    added = got = told = 0
    for _ in range(60):
        move = chance.choice(("add", "add", "trim", "claim", "read"))
        if move == "add":
            many = chance.randint(1, 10)
            add(redis, *(f"1-{n}" for n in range(added + 1, added + many + 1)))
            added += many
            if added == many:  # from the first delivery on, Redis knows the group's position
                claim = ledger.claim(1)
                assert claim is not None
                got += claim.block.count
        elif move == "trim":
            redis.xtrim(STREAM, maxlen=chance.randint(0, 12), approximate=False)
        elif move == "claim":
            claim = ledger.claim(chance.randint(1, 5))
            if claim is not None:
                got += claim.block.count
                told += claim.lost
        else:
            # A plain consumer crosses the gap first: it skips entries silently.
            info = redis.xinfo_groups(STREAM)[0] if added else None
            first = redis.xinfo_stream(STREAM)["recorded-first-entry-id"] if added else b"0-0"
            if info and number(first) <= number(info["last-delivered-id"]) + 1:
                got += len(queue.read(1, chance.randint(1, 5)))
    add(redis, f"1-{added + 1}")
    while (claim := ledger.claim(5)) is not None:
        got += claim.block.count
        told += claim.lost
    assert added + 1 == got + told
    assert ledger.lost() == told


def number(entry_id: bytes) -> int:
    return int(entry_id.partition(b"-")[2])


def test_ledgers_of_different_readers_never_share_a_key() -> None:
    names = [("a", "b:c", "d"), ("a", "b", "c:d"), ("a:b", "c", "d"), ("a", "b%3Ac", "d"), ("{a}b", "c", "d")]
    assert len({losses_key(*name) for name in names}) == len(names)
    assert losses_key("{tag}x", "g", "c").startswith("{tag}x:")


def test_a_bound_holds_to_the_last_digit_of_an_id(redis: Redis, ledger: Ledger) -> None:
    """The server's scripts cannot represent such ids exactly as numbers."""
    ids = ["18446744073709551608-1", "18446744073709551609-1", "18446744073709551609-9223372036854775807"]
    ids += ["18446744073709551609-9223372036854775808", "18446744073709551610-1"]
    add(redis, *ids)
    claims = [ledger.claim(10, bound) for bound in ids]
    assert claims == [Claim(Block(entry_id, entry_id, 1), 6, 0) for entry_id in ids]
    assert ledger.claim(10) is None
