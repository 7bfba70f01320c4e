"""The streaming reconciliation, killed -9 at named points and at random, ends with the result of an undisturbed one."""

from __future__ import annotations

import json
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import redis
from pyspark.sql import SparkSession

from conquiet.embedded import RedisServer
from conquiet.jobs import open_store
from conquiet.queue import connect
from conquiet.spark.source.blocks import Block, Offset
from tests.acceptance.fleet import Fleet
from tests.campaign import FULL
from tests.chance import new_chance
from tests.faults.figures import Record
from tests.spark.deaths import AT_RANDOM, OVERLOADED, START_SECONDS, until_dead
from tests.spark.reconcile.spark.cases import METRICS, Row
from tests.spark.reconcile.spark.stream_driver import POINTS, STREAM, Work, start
from tests.spark.source.doomed import POINTS as SOURCE_POINTS

TABLES = ("verdicts", "trust", "alerts", "retries", "quarantine")
POSTS = 40


@pytest.mark.campaign
@pytest.mark.timeout(900)
@pytest.mark.clause("P-08", "P-09")
def test_killed_at_any_point_it_ends_as_if_undisturbed(
    spark: SparkSession,
    tmp_path: Path,
    postgres_dsn: str,
    capsys: pytest.CaptureFixture[str],
    record_figure: Record,
) -> None:
    chance = new_chance()
    fates = planned(10 if FULL else 2, chance)  # a driver takes long to start
    deaths: list[str] = []
    numbers = count(1)
    began = time.monotonic()
    stores = {"sqlite": f"sqlite:///{tmp_path}/jobs.db", "postgres": postgres_dsn}
    undisturbed = {"undisturbed": f"sqlite:///{tmp_path}/undisturbed.db"}
    as_of = datetime.now(UTC)  # retries are due after the end of the test
    write_metrics(tmp_path, as_of)
    with RedisServer() as server, connect(server.url) as client, Fleet(tmp_path) as fleet:
        entries = Entries(client, chance, as_of)
        for group in (*stores, *undisturbed):
            client.xgroup_create(STREAM, group, "0", mkstream=True)
        entries.add(200)

        def work(name: str, stores: dict[str, str], **more: Any) -> Work:
            return Work(name, server.url, str(tmp_path), stores, as_of.isoformat(), **more)

        while fates:
            nth = 1 if fates[-1] == "opened" else chance.randint(1, 2)  # of two queries
            doom = {} if fates[-1] == AT_RANDOM else {"die_at": fates[-1], "die_at_nth": nth}
            driver = fleet.start(work(f"driver-{next(numbers)}", stores, **doom))
            code = until_dead(driver, fates[-1], chance, at_random=(1.0, 20.0), life_seconds=240.0)
            if code == -signal.SIGKILL:
                deaths.append(fates.pop())
            elif code != 0:  # it did not reach its point: another driver takes its place
                assert OVERLOADED in driver.last_words(), driver.last_words()
            for group in stores:
                assert acknowledged(client, group) <= committed(tmp_path / group, client)
            entries.add(80)
        last = fleet.start(work("last", stores))
        assert last.wait(START_SECONDS) == 0, last.last_words()
        start(
            spark, work("undisturbed", undisturbed, entries_per_batch=1_000_000), "undisturbed"
        ).awaitTermination()
        left = {group: client.xpending(STREAM, group)["pending"] for group in (*stores, *undisturbed)}
        read = {group: len(acknowledged(client, group)) for group in left}
    expected = result(tmp_path / "undisturbed", undisturbed["undisturbed"])
    with capsys.disabled():
        counts = ", ".join(f"{name} {len(rows):,}" for name, rows in expected.items())
        print(
            f"\n{chance}\n{len(deaths)} kill -9 of a streaming reconciliation of {entries.added:,} entries, "
            f"{time.monotonic() - began:.0f} s\n  killed at: {', '.join(deaths)}\n  {counts}"
        )
    assert left == dict.fromkeys(left, 0)
    assert read == dict.fromkeys(left, entries.added)
    entries.check(expected)
    found = {group: result(tmp_path / group, dsn) for group, dsn in stores.items()}
    differences = [
        (Counter(rows), Counter(one[name])) for one in found.values() for name, rows in expected.items()
    ]
    record_figure(
        "Spark: the streaming reconciliation killed -9, at every point and at random",
        n=len(deaths),
        lost=sum((wanted - got).total() for wanted, got in differences),
        doubled=sum((got - wanted).total() for wanted, got in differences),
        killed_at=dict(Counter(deaths)),
        entries=entries.added,
    )
    for group, tables in found.items():
        for name, rows in expected.items():
            assert Counter(tables[name]) == Counter(rows), f"{name} of {group}"


def planned(kills: int, chance: random.Random) -> list[str]:
    """A third at random; the others at different points, around the writes and in the source."""
    at_random = max(1, kills // 3)
    points = chance.sample(
        [*POINTS, *(point for point in SOURCE_POINTS if point != "written")], kills - at_random
    )
    fates = [*points, *[AT_RANDOM] * at_random]
    chance.shuffle(fates)
    return fates


class Entries:
    """The entries of the stream, and the expected results."""

    def __init__(self, client: redis.Redis, chance: random.Random, as_of: datetime) -> None:
        self._client, self._chance = client, chance
        self._submitted_at = (as_of - timedelta(hours=2)).isoformat()
        self._numbers = count()
        self._reports: dict[tuple[int, int], Row] = {}
        self._bad = 0
        self.added = 0

    def add(self, entries: int) -> None:
        with self._client.pipeline() as pipe:
            for text in (self._next() for _ in range(entries)):
                pipe.xadd(STREAM, {"data": text})
            pipe.execute()
        self.added += entries

    def _next(self) -> str:
        kind = self._chance.random()
        if kind < 0.05:
            self._bad += 1
            number = next(self._numbers)
            return self._chance.choice(
                ["no report", "{}", json.dumps(self._report(number, 1) | {"claimed_clicks": -number - 1})]
            )
        if kind < 0.3 and self._reports:
            # The same report again, or a further attempt.
            number, attempt = self._chance.choice(list(self._reports))
            attempt += self._chance.choice((0, 1))
        else:
            number, attempt = next(self._numbers), 1
        report = self._report(number, attempt)
        self._reports[number, attempt] = report
        return json.dumps(report)

    def _report(self, number: int, attempt: int) -> Row:
        return {
            "report_id": number,
            "affiliate_id": f"affiliate-{number % 3}",
            "platform": "photos",
            "post_id": f"p{number % POSTS}",
            "claimed_views": 1500 if number % 5 == 0 else 1000,
            "claimed_clicks": 40,
            "claimed_conversions": 3,
            "submitted_at": self._submitted_at,
            "attempt": attempt,
        }

    def check(self, result: dict[str, list[str]]) -> None:
        """Check the undisturbed run itself, as far as possible without judging."""
        verdicts = [json.loads(row) for row in result["verdicts"]]
        assert Counter((row["report_id"], row["attempt"]) for row in verdicts) == Counter(list(self._reports))
        trust = [json.loads(row) for row in result["trust"]]
        assert Counter((row["report_id"], row["attempt"]) for row in trust) == Counter(
            (row["report_id"], row["attempt"]) for row in verdicts if row["trust_event"]
        )
        fraud = {number for number, _ in self._reports if _overclaims(number)}
        alerts = [json.loads(row) for row in result["alerts"]]
        assert sorted(row["report_id"] for row in alerts if row["kind"] == "fraud") == sorted(fraud)
        assert len(result["quarantine"]) == self._bad
        assert {json.loads(row)["id"] for row in result["jobs"]} == {
            f"report-{row['report_id']}-attempt-{row['attempt'] + 1}"
            for row in verdicts
            if row["scheduled_retry_at"]
        }


def _overclaims(number: int) -> bool:
    return number % 5 == 0 and number % POSTS % 2 == 0


def write_metrics(folder: Path, as_of: datetime) -> None:
    """Every other post has metrics."""
    seen: Row = {"platform": "photos", "views": 1000, "clicks": 40, "conversions": 3}
    seen["observed_at"] = as_of - timedelta(hours=1)
    rows = [seen | {"post_id": f"p{number}"} for number in range(0, POSTS, 2)]
    pq.write_table(pa.Table.from_pylist(rows, METRICS), folder / "metrics.parquet")


def result(folder: Path, dsn: str) -> dict[str, list[str]]:
    """All rows of all tables, and the jobs, as text."""
    found = {
        table: [
            _text(row)
            for file in (folder / "out" / table).glob("day=*/batch=*/*.parquet")
            for row in _rows(file)
        ]
        for table in TABLES
    }
    with open_store(dsn) as store:
        jobs = store.list(queue="reconciliation", limit=100_000)
    for job in jobs:
        assert job.retry_at is not None
        late = job.retry_at - datetime.fromisoformat(job.payload["scheduled_at"])
        assert abs(late) < timedelta(minutes=5)  # delayed until then
    found["jobs"] = [_text({"id": job.id, "payload": job.payload, "state": job.state}) for job in jobs]
    return found


def _rows(file: Path) -> list[Row]:
    rows: list[Row] = pq.ParquetFile(file).read().to_pylist()
    return rows


def _text(row: Row) -> str:
    return json.dumps(row, default=str, sort_keys=True)


def committed(folder: Path, client: Any) -> set[bytes]:
    """The entries of the micro-batches in Spark's commit log."""
    ends = [
        _end(folder / "checkpoint" / "offsets" / log.name) for log in _logs(folder / "checkpoint" / "commits")
    ]
    ranges = [(block.lo, block.hi) for end in ends for block in end.blocks]
    for first in (end for end in ends if end.first is not None):  # its blocks are in the ledger only
        facts = f"{{{STREAM}}}:conquiet-ledger:{folder.name}:{first.query}:query"
        blocks = map(Block.parse, client.hget(facts, "first").decode().split())
        ranges += [(block.lo, block.hi) for block in blocks]
    return {entry for lo, hi in ranges for entry, _ in client.xrange(STREAM, lo, hi)}


def _logs(folder: Path) -> Iterator[Path]:
    return (file for file in folder.glob("*") if file.name.isdigit())


def _end(log: Path) -> Offset:
    """The end offset of a micro-batch: the log has a line with its version, one with metadata, and one per source."""
    offset: dict[str, Any] = json.loads(log.read_text().splitlines()[2])
    return Offset.from_dict(offset)


def acknowledged(client: Any, group: str) -> set[bytes]:
    """Entries that were delivered and are no longer pending."""
    info = next(one for one in client.xinfo_groups(STREAM) if one["name"] == group.encode())
    delivered = {entry for entry, _ in client.xrange(STREAM, "-", info["last-delivered-id"])}
    pending = client.xpending_range(STREAM, group, "-", "+", 1_000_000)
    return delivered - {one["message_id"] for one in pending}
