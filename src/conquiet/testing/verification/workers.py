"""Worker processes that are killed: `python -m conquiet.testing.verification.workers`, told by standard input."""

from __future__ import annotations

import json
import os
import random
import select
import subprocess
import sys
import threading
from collections.abc import Callable
from time import monotonic, sleep
from typing import Any

from conquiet.jobs import JobWorker, open_store
from conquiet.queue import NoTransactions, QueueConfig, QueueConsumer, connect, unique_consumer_name

__all__ = ["EFFECTS", "kill_until"]

EFFECTS = "conquiet_verify_effects"
_LIVES = 0.4  # seconds that a process works, about, before it is killed
_PLACES = 2  # at a time, in each of two processes


def kill_until(
    order: dict[str, Any], work: int, kills: int, done: Callable[[], bool], patience: float = 120.0
) -> int:
    """Two worker processes, one of which is killed -9 every now and then and replaced, until `done`; how many kills.

    Only a process that has begun to work is killed, and the work takes as long as the kills need.
    """
    order = order | {"seconds": 2 * _LIVES * kills * 2 * _PLACES / work}
    workers = [_started(order), _started(order)]
    killed, deadline = 0, monotonic() + patience
    try:
        while not done():
            if monotonic() > deadline:
                raise TimeoutError(f"not everything was done {patience:.0f} s after the start")
            sleep(random.uniform(0.0, _LIVES))
            if killed < kills and _has_begun(workers[0]):
                victim = workers.pop(0)
                victim.kill()
                victim.communicate()
                killed += 1
                workers.append(_started(order))
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    return killed


def _has_begun(worker: subprocess.Popen[str]) -> bool:
    assert worker.stdout is not None
    return bool(select.select([worker.stdout], [], [], 0)[0])


def _started(order: dict[str, Any]) -> subprocess.Popen[str]:
    # By standard input: a DSN may hold a password, and arguments are for all to see.
    process = subprocess.Popen(
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(order) + "\n")
    process.stdin.flush()
    return process


def _work(order: dict[str, Any]) -> None:
    begun = threading.Lock()

    def take_time() -> None:
        if begun.acquire(blocking=False):
            print("begun", flush=True)
        sleep(random.uniform(0.0, order["seconds"]))

    if "dsn" in order:
        _work_on_jobs(order, take_time)
    else:
        _work_on_messages(order, take_time)


def _work_on_jobs(order: dict[str, Any], take_time: Callable[[], None]) -> None:
    """The effect is a row, in the transaction of the acknowledgement: it must be there once."""
    dsn = order["dsn"]
    insert = f"INSERT INTO {EFFECTS} (job) VALUES ({'?' if dsn.startswith('sqlite') else '%s'})"  # noqa: S608

    def handle(job: Any, context: Any) -> None:
        take_time()
        context.connection.execute(insert, (job.id,))

    with open_store(dsn) as store:
        JobWorker(store, handle, queues=order["queue"], concurrency=_PLACES, lease_ttl=1.0).run()


def _work_on_messages(order: dict[str, Any], take_time: Callable[[], None]) -> None:
    """The effect is a count of deliveries, by message."""

    def consume() -> None:
        with connect(order["url"]) as redis:
            config = QueueConfig(order["stream"], "verify", unique_consumer_name(), block_ms=100)

            def handle(message: Any, tx: Any) -> None:
                take_time()
                redis.hincrby(order["effects"], str(message.payload["n"]), 1)

            QueueConsumer(redis, config).run(handler=handle, db_factory=NoTransactions())

    for _ in range(_PLACES - 1):
        threading.Thread(target=consume, daemon=True).start()
    consume()


def _end_with_owner() -> None:
    sys.stdin.read()  # its end is the owner's
    os._exit(1)


if __name__ == "__main__":
    given = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_owner, daemon=True).start()
    _work(given)
