"""pgqueuer on PostgreSQL: enqueue, then drain in its own drain mode, ten jobs per batch (its default)."""

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


async def main(count: int) -> float:
    connection = await asyncpg.connect(os.environ["BENCH_TARGET"])
    driver = AsyncpgDriver(connection)
    queries = Queries(driver)
    await queries.install()
    await queries.enqueue(["nothing"] * count, [b"{}"] * count, [0] * count)
    pgq = PgQueuer(driver)
    done = 0

    @pgq.entrypoint("nothing")
    async def nothing(job: Job) -> None:
        nonlocal done
        done += 1

    begin = time.perf_counter()
    await pgq.qm.run(mode=QueueExecutionMode.drain, batch_size=10)
    seconds = time.perf_counter() - begin
    assert done == count, f"{done} of {count} jobs ran"
    await connection.close()
    return seconds


count = int(sys.argv[1])
seconds = asyncio.run(main(count))
print(json.dumps({"peer": "pgqueuer", "version": version("pgqueuer"), "jobs": count, "seconds": seconds}))
