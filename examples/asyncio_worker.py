"""Coroutines as tasks, many at a time in one event loop: for work that mostly waits, such as HTTP calls.

A hundred calls of 0.2 s each take little longer than one, because the worker runs all of them concurrently. A call that
never returns is cancelled at its own time limit and fails; the others are not affected.

Prints:

    100 pages fetched, 1 failed
    faster than one after the other: True
    the one that failed: the task ran past its limit of 0.5 s and was cancelled
"""

import asyncio
import time

from conquiet import Conquiet
from conquiet.jobs import JobState, RetrySchedule

app = Conquiet("sqlite:///pages.db")
pages: list[str] = []


@app.task
async def fetch(url: str) -> None:
    await asyncio.sleep(0.2)  # in place of await client.get(url)
    pages.append(url)


@app.task(timeout=0.5, retry=RetrySchedule(max_retries=0))
async def stuck() -> None:
    await asyncio.Event().wait()


async def main() -> None:
    async with app:
        await stuck.enqueue_async()
        await asyncio.gather(*(fetch.enqueue_async(f"https://example.com/{n}") for n in range(100)))
        began = time.monotonic()
        counts = await app.worker(concurrency=101).run_async(until_idle=True)
        print(f"{len(pages)} pages fetched, {counts.failed} failed")
        print("faster than one after the other:", time.monotonic() - began < 100 * 0.2)
        (failed,) = await (await app.async_store()).list(state=JobState.FAILED)
        print("the one that failed:", failed.error)


if __name__ == "__main__":
    asyncio.run(main())
