"""The cost of an effect: a flow on the thread and asyncio drivers against the bare loop that it replaces."""

from __future__ import annotations

import asyncio
import threading

from bench.harness import Bench
from conquiet.flow import Beside, Call, Flow, join, run, run_async

BENCH = Bench("flow")


def nothing() -> None:
    pass


async def nothing_awaited() -> None:
    pass


def calls(count: int) -> Flow[None]:
    for _ in range(count):
        yield Call(nothing)


def awaited_calls(count: int) -> Flow[None]:
    for _ in range(count):
        yield Call(nothing_awaited)


def timed_calls(count: int) -> Flow[None]:
    for _ in range(count):
        yield Call(nothing, timeout=60.0)


def no_effects() -> Flow[None]:
    yield from ()


def children(count: int) -> Flow[None]:
    for _ in range(count):
        child = yield Beside(no_effects())
        yield from join(child)


def bare_calls(count: int) -> None:
    for _ in range(count):
        nothing()


def bare_threads(count: int) -> None:
    for _ in range(count):
        thread = threading.Thread(target=nothing)
        thread.start()
        thread.join()


async def bare_awaits(count: int) -> None:
    for _ in range(count):
        await nothing_awaited()


async def bare_tasks(count: int) -> None:
    for _ in range(count):
        await asyncio.create_task(nothing_awaited())


BENCH.compare(
    "thread_call",
    unit="calls",
    count=100_000,
    ours=lambda count: run(calls(count)),
    raw=bare_calls,
)
BENCH.compare(
    "asyncio_call",
    unit="calls",
    count=50_000,
    ours=lambda count: asyncio.run(run_async(awaited_calls(count))),
    raw=lambda count: asyncio.run(bare_awaits(count)),
)
# The usual way to limit a call on a thread is a new thread for each call.
BENCH.compare(
    "thread_timed_call",
    unit="calls",
    count=5_000,
    ours=lambda count: run(timed_calls(count)),
    raw=bare_threads,
)
BENCH.compare(
    "thread_beside",
    unit="children",
    count=2_000,
    ours=lambda count: run(children(count)),
    raw=bare_threads,
)
BENCH.compare(
    "asyncio_beside",
    unit="children",
    count=5_000,
    ours=lambda count: asyncio.run(run_async(children(count))),
    raw=lambda count: asyncio.run(bare_tasks(count)),
)
