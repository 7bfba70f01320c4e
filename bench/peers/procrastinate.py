"""procrastinate on PostgreSQL: enqueue, then drain with one worker, one job at a time (its default; more is no faster)."""

import asyncio
import json
import logging
import os
import sys
import time

# This file has the name of the package it measures, so its folder must not be on the path.
sys.path.pop(0)

import procrastinate

logging.getLogger("procrastinate").setLevel(logging.ERROR)  # it warns about an App in the main module
app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=os.environ["BENCH_TARGET"]))
done = 0
times: list[tuple[float, int]] = []  # a moment, and how many jobs have been done


@app.task(name="nothing")
async def nothing(number: int) -> None:
    global done
    done += 1
    if done % 20 == 0:
        times.append((time.perf_counter(), done))


async def main(count: int) -> float:
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        await nothing.batch_defer_async(*({"number": number} for number in range(count)))
        begin = time.perf_counter()
        await app.run_worker_async(wait=False, concurrency=1, install_signal_handlers=False)
        seconds = time.perf_counter() - begin
    assert done == count, f"{done} of {count} jobs ran"
    return seconds


count = int(sys.argv[1])
seconds = asyncio.run(main(count))
version = procrastinate.__version__
print(
    json.dumps(
        {"peer": "procrastinate", "version": version, "jobs": count, "seconds": seconds, "times": times}
    )
)
