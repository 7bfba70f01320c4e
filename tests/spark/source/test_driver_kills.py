"""Drivers killed -9, at named points and at random, beside a plain consumer that reclaims nothing."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from itertools import count
from pathlib import Path

import pytest

from conquiet.embedded import RedisServer
from conquiet.queue import QueueConfig, QueueConsumer, connect
from tests.acceptance.fleet import Fleet
from tests.campaign import FULL
from tests.chance import new_chance
from tests.faults.figures import Record
from tests.spark.deaths import AT_RANDOM, OVERLOADED, START_SECONDS, until_dead
from tests.spark.source.doomed import POINTS
from tests.spark.source.driver import Work
from tests.spark.source.queries import GROUP, STREAM, fill, sink_ids

BACKLOG = 6_000  # entries waiting for a driver, so that it does not run dry before it dies


@pytest.mark.campaign
@pytest.mark.timeout(600)
@pytest.mark.clause("P-03", "P-04")
def test_every_entry_is_in_the_sink_once_however_often_the_driver_is_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], record_figure: Record
) -> None:
    chance = new_chance()
    kills = 20 if FULL else 1  # a driver takes long to start
    fates = planned(kills, chance)
    deaths: Counter[str] = Counter()
    numbers = count(1)
    began = time.monotonic()
    with (
        RedisServer() as server,
        connect(server.url) as redis,
        Fleet(tmp_path) as fleet,
        PlainConsumer(server.url) as plain,
    ):
        ids = fill(redis, range(BACKLOG))
        while fates:
            fate = fates[-1]
            driver = fleet.start(
                Work(
                    *(f"driver-{next(numbers)}", server.url, str(tmp_path)),
                    consumer=f"query-{chance.randint(1, 3)}",
                    die_at=None if fate == AT_RANDOM else fate,
                    die_at_nth=1 if fate == "opened" else chance.randint(1, 3),
                    endless=True,
                )
            )
            code = until_dead(
                driver, fate, chance, when_ready=lambda: ids.extend(fill(redis, range(BACKLOG // 4)))
            )
            if code == -signal.SIGKILL:
                deaths[fates.pop()] += 1
            else:  # it did not reach its point: another takes its place
                assert OVERLOADED in driver.last_words(), driver.last_words()
        last = fleet.start(Work("last", server.url, str(tmp_path)))
        assert last.wait(START_SECONDS) == 0, last.last_words()
        plain.stop()
        left = redis.xpending(STREAM, GROUP)["pending"]
        ledgers = [key for key in redis.scan_iter("*:conquiet-ledger:*") if redis.type(key) == b"list"]
    ours = sink_ids(tmp_path)
    missing = len(set(ids) - set(ours) - set(plain.ids))
    twice = len(ours) + len(plain.ids) - len({*ours, *plain.ids})
    record_figure(
        "Spark: drivers that read a stream killed -9, at every point and at random",
        n=deaths.total(),
        lost=missing,
        doubled=twice,
        killed_at=dict(deaths),
        entries=len(ids),
    )
    with capsys.disabled():
        print(
            f"\n{chance}\n{kills} kill -9 of drivers in a run of {len(ids):,} entries, {time.monotonic() - began:.0f} s\n"
            f"  killed at: {', '.join(f'{point} {times}' for point, times in deaths.most_common())}\n"
            f"  Spark {len(ours):,}, plain consumer {len(plain.ids):,}, "
            f"missing {missing}, twice {twice}, pending {left}"
        )
    assert Counter([*ours, *plain.ids]) == Counter(ids)  # every one, exactly once
    assert plain.ids
    assert ours
    assert left == 0
    assert deaths.total() == kills
    assert ledgers == []  # an empty one is no key


def planned(kills: int, chance: random.Random) -> list[str]:
    """Two in three at a named point, each point equally often; a single one at any of them."""
    named = max(1, kills * 2 // 3)
    points = chance.sample(POINTS, len(POINTS)) * (named // len(POINTS) + 1)
    fates = [*points[:named], *[AT_RANDOM] * (kills - named)]
    chance.shuffle(fates)
    return fates


class PlainConsumer:
    """Handles one message at a time on its own thread, a little slower than Spark; it never reclaims."""

    def __init__(self, url: str) -> None:
        self.ids: list[str] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._consume, args=(url,))
        self._thread.start()

    def __enter__(self) -> PlainConsumer:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _consume(self, url: str) -> None:
        with connect(url) as redis:
            consumer = QueueConsumer(redis, QueueConfig(STREAM, GROUP, "plain", block_ms=100))
            while not self._stopped.wait(0.1):
                message = consumer.next()
                if message is not None:
                    self.ids.append(message.id)
                    consumer.ack(message)
