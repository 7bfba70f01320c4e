"""Workers and producers in their own processes: python -m tests.integration.jobs.programs NAME '{…}'"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from conquiet.jobs import Job, JobContext, JobWorker, RetrySchedule, open_store
from tests.integration.jobs.handlers import LINGER, note

QUICK = RetrySchedule(max_retries=3, base_seconds=0.01, max_seconds=0.01)


def say(*words: object) -> None:
    print(*words, flush=True)


# work: a worker until SIGTERM; it prints its counts at the end, and its log goes to standard error


def work(dsn: str, handler: str, isolation: str = "thread", **settings: Any) -> None:
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    with open_store(dsn, retry=QUICK, max_lease_expiries=settings.pop("max_lease_expiries", 20)) as store:
        until_idle = settings.pop("until_idle", False)
        worker = JobWorker(
            store,
            HANDLERS[handler][isolation],
            queues="q",
            isolation=isolation,
            handle_signals=True,
            **settings,
        )
        say("ready")
        counts = worker.run_until_idle(wait_for_delayed=True) if until_idle else worker.run()
        say(json.dumps(asdict(counts)))


def die(job: Job) -> None:
    note(job, "begin")
    os.kill(os.getpid(), signal.SIGKILL)


def fenced(job: Job, context: JobContext) -> None:
    """An effect outside the store: a file that keeps the highest version that has written it."""
    note(job, "begin")
    while not Path(job.payload["go"]).exists():
        time.sleep(0.01)
    file = Path(job.payload["effect"])
    written = int(file.read_text()) if file.exists() else 0
    note(job, "written" if context.version > written else "refused")
    file.write_text(str(max(written, context.version)))


def effect(job: Job, context: JobContext) -> None:
    """An effect in the store's database, followed by a long delay before the handler ends."""
    context.connection.execute(f"INSERT INTO effects VALUES ({job.payload['n']})")
    note(job, "begin")
    time.sleep(job.payload["seconds"])


async def effect_async(job: Job, context: JobContext) -> None:
    result = (await context.get_connection()).execute(f"INSERT INTO effects VALUES ({job.payload['n']})")
    if asyncio.iscoroutine(result):
        await result
    note(job, "begin")
    await asyncio.sleep(job.payload["seconds"])


def poison(job: Job) -> None:
    """One job kills its worker, while the others run for a moment."""
    note(job, "begin")
    if job.payload.get("dies"):
        time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(job.payload.get("seconds", 0.05))
    note(job, "end")


HANDLERS: dict[str, dict[str, Any]] = {
    "linger": LINGER,
    "die": {"thread": die},
    "poison": {"thread": poison},
    "fenced": {"thread": fenced},
    "effect": {"thread": effect, "async": effect_async},
}


# produce: enqueue a job for every input line, and print the time


def produce(dsn: str) -> None:
    with open_store(dsn) as store:
        say("ready")
        for _ in sys.stdin:
            store.enqueue("q", {"at": time.time()})


# lock: hold the write lock of an SQLite file for as long as standard input is open


def lock(path: str) -> None:
    import sqlite3

    connection = sqlite3.connect(path, isolation_level=None, timeout=30)
    connection.execute("BEGIN IMMEDIATE")
    say("ready")
    sys.stdin.read()
    connection.rollback()
    connection.close()


if __name__ == "__main__":
    programs: dict[str, Callable[..., None]] = {"work": work, "produce": produce, "lock": lock}
    programs[sys.argv[1]](**json.loads(sys.argv[2]))
