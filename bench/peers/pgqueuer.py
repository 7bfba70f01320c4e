"""pgqueuer on PostgreSQL: enqueue, then drain in its own drain mode, by default ten jobs per batch.

A second argument is another size of its batches, or what to measure instead: "single" enqueues one job at a time, "bulk" 1,000.
"""

import asyncio
import json
import os
import sys
import time
from importlib.metadata import version

# This file has the name of the package it measures, so its folder must not be on the path.
sys.path.pop(0)

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.domain.types import QueueExecutionMode
from pgqueuer.models import Job
from pgqueuer.queries import Queries

PAYLOAD = b'{"report_id":"r-000001","affiliate_id":"a-17","claimed_views":1200,"claimed_clicks":34}'


times: list[tuple[float, int]] = []  # a moment, and how many jobs have been done


async def enqueue(queries: Queries, count: int, size: int) -> float:
    begin = time.perf_counter()
    for _ in range(0, count, size):
        await queries.enqueue(["nothing"] * size, [PAYLOAD] * size, [0] * size)
    return time.perf_counter() - begin


async def main(count: int, what: str = "drain", **settings: int) -> float:
    connection = await asyncpg.connect(os.environ["BENCH_TARGET"])
    driver = AsyncpgDriver(connection)
    queries = Queries(driver)
    await queries.install()
    if what != "drain":
        seconds = await enqueue(queries, count, 1 if what == "single" else 1_000)
        await connection.close()
        return seconds
    await queries.enqueue(["nothing"] * count, [b"{}"] * count, [0] * count)
    pgq = PgQueuer(driver)
    done = 0

    @pgq.entrypoint("nothing")
    async def nothing(job: Job) -> None:
        nonlocal done
        done += 1
        if done % 100 == 0:
            times.append((time.perf_counter(), done))

    begin = time.perf_counter()
    await pgq.qm.run(mode=QueueExecutionMode.drain, **settings)
    seconds = time.perf_counter() - begin
    assert done == count, f"{done} of {count} jobs ran"
    await connection.close()
    return seconds


count = int(sys.argv[1])
given = sys.argv[2] if len(sys.argv) > 2 else "10"
options = {"batch_size": int(given)} if given.isdecimal() else {"what": given}
seconds = asyncio.run(main(count, **options))
result = {
    "peer": "pgqueuer",
    "version": version("pgqueuer"),
    "jobs": count,
    "seconds": seconds,
    "times": times,
}
print(json.dumps(result))
