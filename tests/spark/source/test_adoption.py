"""A query is known by its checkpoint: under another consumer's name, or with other partitions, it goes on with its own."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

from conquiet.errors import ConsumerTakenError
from conquiet.queue import connect
from conquiet.spark.source.ledger import Ledger
from tests.campaign import campaign_size
from tests.chance import Chance
from tests.spark.source.protocol import STEPS, Driver, lapse
from tests.spark.source.queries import CONSUMER, GROUP, STREAM, fill, pending


@pytest.fixture
def redis(one_redis: str) -> Iterator[Redis]:
    with connect(one_redis) as client:
        yield client


def ledger(redis: Redis, consumer: str = CONSUMER, query: str = "q", **more: Any) -> Ledger:
    return Ledger(redis, STREAM, GROUP, consumer, query, **more)


def holders(redis: Redis) -> dict[str, int]:
    consumers = redis.xpending(STREAM, GROUP)["consumers"]
    return {one["name"].decode(): one["pending"] for one in consumers}


@pytest.mark.clause("P-03")
@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("step", STEPS)
def test_killed_anywhere_and_renamed_it_reads_everything_once(
    redis: Redis, one_redis: str, step: str, nth: int
) -> None:
    ids = fill(redis, range(450))
    driver = Driver(one_redis)
    driver.run(consumer="before", partitions=4, die_at=step, nth=nth)
    lapse(redis)
    driver.run(consumer="after", partitions=1)
    assert driver.ids == ids
    assert all(before == after for before, after in driver.replays)
    assert pending(redis) == 0


@pytest.mark.campaign
@pytest.mark.clause("P-03")
def test_however_often_it_is_killed_and_renamed(redis: Redis, one_redis: str, chance: Chance) -> None:
    for _ in range(campaign_size(200)):
        redis.flushall()
        ids = fill(redis, range(chance.randint(1, 300)))
        driver = Driver(one_redis)
        for _ in range(chance.randint(1, 6)):
            driver.run(
                die_at=chance.choice(STEPS),
                nth=chance.randint(1, 3),
                limit=chance.randint(1, 120),
                consumer=chance.choice("abc"),
                partitions=chance.randint(1, 5),
            )
            lapse(redis)
            ids += fill(redis, range(chance.randint(0, 60)))
        driver.run()
        assert driver.ids == ids
        assert all(before == after for before, after in driver.replays)
        assert pending(redis) == 0


def test_adopted_entries_are_pending_for_the_new_name_and_it_says_so(
    redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    ids = fill(redis, range(100))
    before = ledger(redis, "before")
    before.open()
    claim = before.claim(80)
    assert claim is not None
    redis.xclaim(STREAM, GROUP, "thief", 0, [ids[0]])
    before.release()
    with caplog.at_level(logging.WARNING, "conquiet.spark"):
        assert ledger(redis, "after").open() == [claim.block]
    assert holders(redis) == {"after": 79, "thief": 1}
    rows = redis.xpending_range(STREAM, GROUP, ids[1], "+", 10)
    assert [row["times_delivered"] for row in rows] == [1] * 10
    (said,) = caplog.messages
    assert "used to read as consumer 'before' and now reads as 'after'; it has adopted 80 entries" in said


def test_an_adoption_that_was_interrupted_is_done_at_the_next_start(redis: Redis) -> None:
    class Dying(Ledger):
        def refresh(self, block: Any, min_idle_ms: int, holder: str | None = None) -> int:
            super().refresh(block, min_idle_ms, holder)
            raise KeyboardInterrupt

    fill(redis, range(100))
    before = ledger(redis, "before")
    before.open()
    held = [claim.block for claim in (before.claim(40), before.claim(40)) if claim is not None]
    before.release()
    with pytest.raises(KeyboardInterrupt):
        Dying(redis, STREAM, GROUP, "after", "q").open()
    assert holders(redis) == {"before": 40, "after": 40}
    lapse(redis)
    assert ledger(redis, "after").open() == held
    assert holders(redis) == {"after": 80}


def test_a_new_checkpoint_takes_what_the_consumer_held_under_one_that_is_not_in_use(
    redis: Redis, one_redis: str
) -> None:
    ids = fill(redis, range(100))
    Driver(one_redis).run(die_at="planned")  # its checkpoint is thrown away
    lapse(redis)
    anew = Driver(one_redis)
    anew.run()
    assert anew.ids == ids
    assert pending(redis) == 0


def test_a_query_that_runs_under_another_name_by_now_is_left_alone(redis: Redis) -> None:
    fill(redis, range(100))
    moved = ledger(redis, "old", "one")
    moved.open()
    moved.claim(80)
    moved.release()
    moved = ledger(redis, "new", "one")
    held = moved.open()
    other = ledger(redis, "old", "two")
    assert other.look() != ""
    assert other.open() == []
    assert moved.claim(5) is not None
    assert len(held) == 1


@pytest.mark.clause("P-01")
@pytest.mark.parametrize(
    ("consumer", "query", "reason"),
    [
        (CONSUMER, "another", "a running query reads as this consumer .*give each query its own `consumer`"),
        ("another", "q", "a running query uses this checkpoint .*its own checkpointLocation"),
    ],
    ids=["one consumer", "one checkpoint"],
)
def test_of_two_running_queries_the_second_is_refused(
    redis: Redis, consumer: str, query: str, reason: str
) -> None:
    fill(redis, range(10))
    first = ledger(redis)
    first.open()

    times: list[float] = []

    def goes_on(seconds: float) -> None:
        times.append(seconds)
        if len(times) == 1:
            for key in redis.scan_iter("*:lease"):
                redis.pexpire(key, 5_000)  # some time has passed,
        else:
            first.renew()  # and the holder is alive

    with pytest.raises(ConsumerTakenError, match=reason):
        ledger(redis, consumer, query, sleep=goes_on).open()
    assert len(times) == 2
    assert first.claim(10) is not None


@pytest.mark.parametrize("step", ["open", "look"])
def test_a_crashed_query_starts_again_when_its_lease_has_lapsed(
    redis: Redis, caplog: pytest.LogCaptureFixture, step: str
) -> None:
    ledger(redis).open()
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            lapse(redis)

    successor = ledger(redis, sleep=wait)
    getattr(successor, step)()
    assert len(waits) == 3
    (said,) = caplog.messages  # once
    assert "waiting at most 10 s, until the lease of a run that did not end properly has lapsed" in said


def test_a_lease_that_nobody_renews_lapses_by_itself(redis: Redis) -> None:
    ledger(redis, lease_seconds=0.05).open()
    successor = ledger(redis)
    successor.open()
    assert successor.claim(1) is None


def test_a_run_that_lost_its_consumers_lease_to_another_query_ends(redis: Redis) -> None:
    fill(redis, range(10))
    slow = ledger(redis, query="slow")
    slow.open()
    lapse(redis)
    ledger(redis, query="other").open()
    with pytest.raises(ConsumerTakenError, match="did not renew its lease in time"):
        slow.claim(1)
    with pytest.raises(ConsumerTakenError):
        slow.renew()


def test_a_run_whose_lease_has_lapsed_goes_on_if_nobody_took_it(redis: Redis) -> None:
    fill(redis, range(10))
    slow = ledger(redis)
    slow.open()
    lapse(redis)
    assert slow.claim(5) is not None
    assert sum(1 for _ in redis.scan_iter("*:lease")) == 2


def test_facts_about_a_query_expire_only_while_it_holds_nothing(redis: Redis) -> None:
    fill(redis, range(10))
    one = ledger(redis)
    one.open()
    facts = f"{{{STREAM}}}:conquiet-ledger:{GROUP}:q:query"
    assert redis.ttl(facts) > 86_400
    claim = one.claim(5)
    assert claim is not None
    assert redis.ttl(facts) == -1
    one.renew()
    assert redis.ttl(facts) == -1
    one.settle(claim.block)
    assert redis.ttl(facts) > 86_400


def test_a_restarted_query_claims_nothing_after_the_bound_of_available_now(
    redis: Redis, one_redis: str
) -> None:
    """The first call after a restart runs the batch of the checkpoint, and what it claims ahead is bounded, too."""
    ids = fill(redis, range(100))
    driver = Driver(one_redis)
    driver.run(die_at="planned", limit=40)
    lapse(redis)
    driver.run(limit=100, available_now=True, meanwhile=lambda: fill(redis, range(500)))
    assert driver.ids == ids
    assert redis.xinfo_groups(STREAM)[0]["last-delivered-id"].decode() == ids[-1]


RUNNING = """
import os, sys
from pyspark.sql.streaming.datasource import ReadMaxRows
from conquiet.spark.source.options import SOURCE_SCHEMA
from conquiet.spark.source.stream import ConquietStreamReader
options = {"url": sys.argv[1], "stream": "reports", "group": "spark", "consumer": "query-1"}
reader = ConquietStreamReader(options, SOURCE_SCHEMA)
start = reader.initialOffset()
try:
    end = reader.latestOffset(start, ReadMaxRows(10))
    assert len(reader.partitions(start, end)) > 0
    print("running", flush=True)
    sys.stdin.read()
finally:
    reader.stop()  # as Spark's own program does
"""


def test_a_query_that_spark_ends_leaves_no_lease_behind(redis: Redis, one_redis: str) -> None:
    """Spark ends the source's process by SIGTERM, sometimes twice."""
    fill(redis, range(100))
    environment = os.environ | {"PYTHON_WORKER_FACTORY_PORT": "1"}  # as in a process of Spark
    command = [sys.executable, "-c", RUNNING, one_redis]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline() == b"running\n"
        assert len(list(redis.scan_iter("*:lease"))) == 2
        process.terminate()
        process.terminate()
        assert process.wait(60) == 0
    assert list(redis.scan_iter("*:lease")) == []
    ledger(redis, sleep=refuse).open()


def refuse(seconds: float) -> None:
    raise AssertionError("there was a lease to wait for")
