"""Drivers killed -9 while they write, at named points and at random; batches are replayed, rows are not duplicated."""

from __future__ import annotations

import itertools
import json
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
import redis

from conquiet.embedded import PostgresServer, RedisServer
from conquiet.jobs import JobStore, open_store
from tests.acceptance.fleet import Fleet
from tests.campaign import campaign_size
from tests.chance import new_chance
from tests.faults.figures import Record
from tests.spark.deaths import AT_RANDOM, START_SECONDS, until_dead
from tests.spark.sink.doomed import JOB_POINTS, STREAM_POINTS
from tests.spark.sink.driver import Work
from tests.spark.sink.sinking import QUEUE, STREAM

ROWS = 3_000  # of one batch: a few chunks for each of two tasks


@pytest.mark.campaign
@pytest.mark.timeout(600)
@pytest.mark.clause("P-05")
def test_every_row_arrives_once_however_often_the_driver_is_killed(
    tmp_path: Path,
    postgres_server: PostgresServer,
    postgres_dsn: str,
    capsys: pytest.CaptureFixture[str],
    record_figure: Record,
) -> None:
    chance = new_chance()
    deaths: Counter[str] = Counter()
    done: list[str] = []  # ids of jobs that were done and pruned, so that a replay that adds them again shows
    began = time.monotonic()
    with (
        RedisServer() as server,
        redis.Redis.from_url(server.url) as client,
        open_store(postgres_dsn) as store,
        Fleet(tmp_path) as fleet,
    ):
        sinks = {
            "stream": {"url": server.url, "stream": STREAM},
            "jobs": {"dsn": postgres_dsn, "queue": QUEUE},
        }
        lines = Lines(tmp_path)
        planned, numbers = fates(campaign_size(24), chance), itertools.count()
        while planned:
            sink, fate = planned[-1]
            lines.add(sink)
            doom = {} if fate == AT_RANDOM else {"die_at": fate, "die_at_nth": _nth(fate, chance)}
            work = Work(f"driver-{next(numbers)}", str(tmp_path), {sink: sinks[sink]}, **doom)  # type: ignore[arg-type]
            driver = fleet.start(work)
            code = until_dead(driver, fate, chance, at_random=(0.0, 4.0))
            if code == -signal.SIGKILL:
                planned.pop()
                deaths[f"{sink} {fate}"] += 1
            else:  # it was done before its moment came: another takes its place
                assert (code, fate) == (0, AT_RANDOM), driver.last_words()
            done += drain(store)
        last = fleet.start(Work("last", str(tmp_path), {name: sinks[name] for name in lines.written}))
        assert last.wait(START_SECONDS) == 0, last.last_words()
        done += drain(store)
        entries = [fields[b"data"].decode() for _, fields in client.xrange(STREAM)]
        left = [key for key in client.keys("*") if client.type(key) in (b"list", b"set")]
    wanted = Counter(lines.written.get("stream", []))
    wanted_jobs = Counter(json.loads(line)["id"] for line in lines.written.get("jobs", []))
    found, found_jobs = Counter(entries), Counter(done)
    record_figure(
        "Spark: drivers that write to a stream and to jobs killed -9, at every point and at random",
        n=deaths.total(),
        lost=(wanted - found).total() + (wanted_jobs - found_jobs).total(),
        doubled=(found - wanted).total() + (found_jobs - wanted_jobs).total(),
        killed_at=dict(deaths),
        rows=wanted.total() + wanted_jobs.total(),
    )
    with capsys.disabled():
        print(
            f"\n{chance}\n{deaths.total()} kill -9 of drivers that write, {time.monotonic() - began:.0f} s\n"
            f"  killed at: {', '.join(f'{point} {count}' for point, count in deaths.most_common())}\n"
            f"  entries {len(entries):,} of {wanted.total():,}, jobs {len(done):,} of {wanted_jobs.total():,}"
        )
    assert found == wanted
    assert found_jobs == wanted_jobs
    assert left == []  # no staging


def fates(kills: int, chance: random.Random) -> list[tuple[str, str]]:
    """Sinks in turn; each point equally often, and a fifth at random."""
    streams, jobs = (itertools.cycle((*points, AT_RANDOM)) for points in (STREAM_POINTS, JOB_POINTS))
    for _ in range(chance.randrange(30)):  # a short run does not always start with the same fate
        next(streams), next(jobs)
    return [("jobs", next(jobs)) if number % 2 else ("stream", next(streams)) for number in range(kills)]


def _nth(fate: str, chance: random.Random) -> int:
    return chance.randint(1, 6) if fate == "midway" else chance.randint(1, 3) if fate == "staging" else 1


class Lines:
    """The files that drivers read, one per batch, and everything in them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.written: dict[str, list[str]] = {}

    def add(self, sink: str) -> None:
        folder = self._folder / sink / "lines"
        folder.mkdir(parents=True, exist_ok=True)
        written = self.written.setdefault(sink, [])
        lines = [json.dumps({"id": f"job-{n}"}) for n in range(len(written), len(written) + ROWS)]
        file = folder / f".{len(written):08}"
        file.write_text("\n".join(lines))
        file.rename(folder / file.name[1:])  # Spark ignores files that begin with a dot
        written += lines


def drain(store: JobStore) -> list[str]:
    """Do the work there is, and prune it: the ids of these jobs are free again."""
    done = []
    while jobs := store.claim(QUEUE, 1_000, lease_ttl=60.0):
        assert all(result.ok for result in store.ack_many(jobs))
        done += [job.id for job in jobs]
    store.prune(0)
    return done
