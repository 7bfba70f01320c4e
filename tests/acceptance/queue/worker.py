"""A consumer in its own process, for tests that kill it: `python -m tests.acceptance.queue.worker '{…}'`.

Its effect is a row in SQLite, written once per message (`HandledEntries`). It ends at SIGTERM as every consumer does,
kills itself (SIGKILL) at a point named at its start or on its standard input, and ends with its parent.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from conquiet.queue import (
    HandledEntries,
    QueueConfig,
    QueueMessage,
    SqliteTransactions,
    connect,
    connect_async,
)
from conquiet.queue.flows.delivery import Delivery
from conquiet.verify.history import History
from conquiet.verify.recording.streams import AsyncRecordedConsumer, RecordedConsumer
from tests.acceptance.fleet import READY
from tests.acceptance.queue import broken_consumers

INTERVAL_MS = 50  # between two searches for stale messages


@dataclass(frozen=True)
class Work:
    """The instructions for a worker."""

    url: str
    name: str
    database: str
    history: str
    recover: bool = False
    on_asyncio: bool = False
    delivery: str = "Delivery"
    die_at: str | None = None
    die_at_nth: int = 1
    block_ms: int = 200
    claim_idle_ms: int = 1_000

    @property
    def config(self) -> QueueConfig:
        return QueueConfig(
            "campaign", "group", self.name, block_ms=self.block_ms, claim_idle_ms=self.claim_idle_ms
        )

    def command(self) -> list[str]:
        return [sys.executable, "-m", "tests.acceptance.queue.worker", json.dumps(asdict(self))]


class Milestones:
    """Reports this process as ready at the first point it reaches, and kills it at the point set by `die_at`."""

    def __init__(self) -> None:
        self._ready = False
        self._doom: str | None = None
        self._left = 0

    def die_at(self, point: str, nth: int = 1) -> None:
        """Set the point; from any thread."""
        self._left = nth
        self._doom = point

    def __call__(self, point: str) -> None:
        if not self._ready:
            self._ready = True
            os.write(1, READY)
        if point == self._doom:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


class Effects:
    """A database with a row per message: exactly one, however often it was delivered."""

    def __init__(self, path: str | Path) -> None:
        self.connection = sqlite3.connect(path, timeout=60)
        # A killed process loses nothing that the kernel has: syncing to disk would only cost time.
        self.connection.execute("PRAGMA synchronous = OFF")
        self._handled = HandledEntries()

    def create(self) -> None:
        self.connection.execute("PRAGMA journal_mode = WAL")
        # No unique key: a duplicate effect must show.
        self.connection.execute("CREATE TABLE effects (entry_id TEXT, number INTEGER, worker TEXT)")
        self._handled.create_table(self.connection)
        self.connection.commit()

    def write(self, message: QueueMessage, tx: sqlite3.Connection, worker: str) -> None:
        if self._handled.first_time(tx, message):
            tx.execute("INSERT INTO effects VALUES (?, ?, ?)", (message.id, message.payload["n"], worker))

    def close(self) -> None:
        self.connection.close()

    def count(self) -> int:
        return int(self.connection.execute("SELECT coalesce(max(rowid), 0) FROM effects").fetchone()[0])

    def numbers(self) -> list[int]:
        rows = self.connection.execute("SELECT number FROM effects ORDER BY number")
        return [number for (number,) in rows]


def main() -> None:
    work = Work(**json.loads(sys.argv[1]))
    reached = Milestones()
    if work.die_at is not None:
        reached.die_at(work.die_at, work.die_at_nth)
    threading.Thread(target=_listen, args=(reached,), daemon=True).start()
    delivery: type[Delivery] = getattr(broken_consumers, work.delivery)
    effects = Effects(work.database)

    def handler(message: QueueMessage, tx: sqlite3.Connection) -> None:
        effects.write(message, tx, work.name)
        reached("handling")

    how: dict[str, Any] = {"handler": handler, "db_factory": SqliteTransactions(effects.connection)}
    if work.recover:
        how["interval_ms"] = INTERVAL_MS
    with History(work.history) as history:
        settings: dict[str, Any] = {"reached": reached, "delivery": delivery}
        if work.on_asyncio:
            asyncio.run(_run_async(work, history, settings, how))
        else:
            with connect(work.url) as redis:
                consumer = RecordedConsumer(redis, work.config, history, **settings)
                (consumer.run_recovery if work.recover else consumer.run)(**how)


async def _run_async(work: Work, history: History, settings: dict[str, Any], how: dict[str, Any]) -> None:
    async with connect_async(work.url) as redis:
        consumer = AsyncRecordedConsumer(redis, work.config, history, **settings)
        await consumer.create_group()
        await (consumer.run_recovery if work.recover else consumer.run)(**how)


def _listen(reached: Milestones) -> None:
    """The parent may name a point to die at; when the parent ends, so does this process."""
    while point := os.read(0, 100).decode().strip():
        reached.die_at(point)
    os._exit(1)


if __name__ == "__main__":
    main()
