"""What Spark does with a streaming source and its checkpoint, without Spark: for tests that let a driver die between any
two of its steps and start it again, hundreds of times a minute."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

from pyspark.sql.streaming.datasource import ReadMaxRows
from redis import Redis

from conquiet.spark.source.ledger import Ledger
from conquiet.spark.source.options import SOURCE_SCHEMA
from conquiet.spark.source.stream import ConquietStreamReader
from tests.spark.source.queries import CONSUMER, GROUP, STREAM

STEPS = ("offset", "logged", "planned", "written", "committed", "next")


def lapse(redis: Redis) -> None:
    """Whoever held a lease is as good as dead: it is over."""
    for key in list(redis.scan_iter("*:lease")):
        redis.delete(key)


class SilentLedger(Ledger):
    """One whose process is killed: it releases nothing."""

    def release(self) -> None:
        pass


class SilentReader(ConquietStreamReader):
    def make_ledger(self, query: str) -> Ledger:
        made = super().make_ledger(query)
        made.__class__ = SilentLedger
        return made


class Driver:
    """A query's checkpoint and sink, which outlive its runs. The sink writes by batch id."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.offsets: list[str] = []
        self.commits: set[int] = set()
        self.sink: dict[int, list[str]] = {}
        self.replays: list[tuple[list[str], list[str]]] = []

    @property
    def ids(self) -> list[str]:
        return [one for batch in sorted(self.sink) for one in self.sink[batch]]

    def run(
        self,
        *,
        die_at: str = "",
        nth: int = 1,
        limit: int = 100,
        available_now: bool = False,
        meanwhile: Callable[[], object] = bool,
        **options: Any,
    ) -> None:
        """Run until there is nothing new, or until this step is reached for the nth time."""
        named = {"url": self.url, "stream": STREAM, "group": GROUP, "consumer": CONSUMER, "heartbeat": "60"}
        named |= {"maxEntriesPerTrigger": str(limit), "partitions": "2"}
        kind = SilentReader if die_at else ConquietStreamReader
        reader = kind(named | {name: str(value) for name, value in options.items()}, SOURCE_SCHEMA)
        if available_now:
            reader.prepareForTriggerAvailableNow()
        meanwhile()
        steps: dict[str, int] = {}
        for step in self._steps(reader, limit):
            steps[step] = steps.get(step, 0) + 1
            if step == die_at and steps[step] == nth:
                break
        reader.stop()

    def _steps(self, reader: ConquietStreamReader, limit: int) -> Iterator[str]:
        number = len(self.offsets) - 1
        if number >= 0 and number not in self.commits:
            yield from self._batch(reader, number)
        while True:
            start = json.loads(self.offsets[-1]) if self.offsets else reader.initialOffset()
            end = reader.latestOffset(start, ReadMaxRows(limit))
            yield "next"
            if end == start:
                return
            yield "offset"
            self.offsets.append(json.dumps(end))
            yield "logged"
            yield from self._batch(reader, len(self.offsets) - 1)

    def _batch(self, reader: ConquietStreamReader, number: int) -> Iterator[str]:
        start = json.loads(self.offsets[number - 1]) if number else reader.initialOffset()
        partitions = reader.partitions(start, json.loads(self.offsets[number]))
        self._wait(reader)
        yield "planned"
        rows = [
            one for part in partitions for rows in reader.read(part) for one in rows.column(0).to_pylist()
        ]
        if number in self.sink:
            self.replays.append((self.sink[number], rows))
        self.sink[number] = rows
        yield "written"
        self.commits.add(number)
        yield "committed"

    def _wait(self, reader: ConquietStreamReader) -> None:
        """Until the next batch is claimed ahead: a real one takes longer than that."""
        keeper, deadline = reader._opened, time.monotonic() + 60
        assert keeper is not None
        while keeper._claiming and keeper._failure is None:
            assert time.monotonic() < deadline
            time.sleep(0.001)
