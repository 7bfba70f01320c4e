"""The event loop whose time jumps, and its clock."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from conquiet.clock import Parker
from conquiet.errors import CallTimeoutError, FlowError
from conquiet.flow import Call, Flow, Sleep, run_async
from conquiet.testing import LoopClock, VirtualLoop


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        yield runner


def test_sleeping_takes_no_real_time(runner: asyncio.Runner) -> None:
    async def main() -> tuple[float, float]:
        clock = LoopClock(start=100.0)
        await asyncio.sleep(30 * 24 * 3600.0)
        return clock.time() - 100.0, clock.monotonic()

    began = time.monotonic()
    assert runner.run(main()) == (2_592_000.0, 2_592_000.0)
    assert time.monotonic() - began < 5


def test_tasks_wake_in_the_order_of_their_times(runner: asyncio.Runner) -> None:
    async def main() -> list[float]:
        seen: list[float] = []

        async def one(seconds: float) -> None:
            await asyncio.sleep(seconds)
            seen.append(asyncio.get_running_loop().time())

        await asyncio.gather(one(30), one(10), one(20))
        return seen

    assert runner.run(main()) == [10, 20, 30]


def test_time_stands_still_while_something_is_ready(runner: asyncio.Runner) -> None:
    async def main() -> float:
        async with asyncio.timeout(1):
            for _ in range(1_000):
                await asyncio.sleep(0)
        return asyncio.get_running_loop().time()

    assert runner.run(main()) == 0


def test_flows_have_their_time_limits_in_it(runner: asyncio.Runner) -> None:
    async def main() -> float:
        clock = LoopClock()

        def flow() -> Flow[float]:
            yield Sleep(5)
            with pytest.raises(CallTimeoutError):
                yield Call(asyncio.sleep, 100, timeout=7)
            return clock.monotonic()

        return await run_async(flow())

    assert runner.run(main()) == 12


def test_threads_of_executors_are_waited_for(runner: asyncio.Runner) -> None:
    async def main() -> tuple[str, float]:
        gate = threading.Timer(0.05, lambda: None)
        gate.start()
        async with asyncio.timeout(1):
            await asyncio.to_thread(gate.join)
            return "waited", asyncio.get_running_loop().time()

    assert runner.run(main()) == ("waited", 0)


def test_a_socket_that_is_ready_is_served(runner: asyncio.Runner) -> None:
    async def main() -> bytes:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            theirs.sendall(b"hello")
            async with asyncio.timeout(1):
                return await asyncio.get_running_loop().sock_recv(ours, 5)

    assert runner.run(main()) == b"hello"


def test_a_loop_that_waits_for_nothing_is_an_error() -> None:
    loop = VirtualLoop(patience=0.02)
    forever = loop.create_future()
    with pytest.raises(FlowError, match="stuck at 0 s"):
        loop.run_until_complete(forever)
    loop.close()


def test_its_clock_is_not_for_threads(runner: asyncio.Runner) -> None:
    async def main() -> None:
        with pytest.raises(FlowError, match="AutojumpClock"):
            LoopClock().wait(Parker(), 1)

    runner.run(main())
