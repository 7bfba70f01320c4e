"""Virtual time for asyncio: an event loop whose time jumps when nothing is ready, and a clock over it."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Mapping
from typing import Any

from conquiet.clock import Parker
from conquiet.errors import FlowError

__all__ = ["LoopClock", "VirtualLoop"]


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop for tests in which sleeping takes no time:

        async def main() -> ConsumeReport:
            return await task.consume_transactions(connector, policy, clock=LoopClock())

        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            report = runner.run(main())

    `time()` begins at 0 and does not advance while anything is ready; when nothing is, it jumps to the next timer. Calls
    in executors (`asyncio.to_thread`) are first waited for in real time. Ready sockets are served, but a socket that
    is not ready does not stop the time, nor does a thread that the loop does not know. A loop with nothing left to
    wait for raises FlowError after `patience` real seconds.
    """

    def __init__(self, *, patience: float = 20.0) -> None:
        self._jumping = _JumpingSelector(patience)
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Any, *args: Any
    ) -> asyncio.Future[Any]:
        future = super().run_in_executor(executor, func, *args)
        self._jumping.outside += 1
        future.add_done_callback(self._came_back)
        return future

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        await super().shutdown_default_executor()  # without a time limit, which would expire immediately

    def _came_back(self, future: asyncio.Future[Any]) -> None:
        self._jumping.outside -= 1


class LoopClock:
    """The time of the running loop as a `Clock`, for flows on asyncio. (They never call `wait`: the loop waits.)"""

    def __init__(self, start: float = 1_700_000_000.0, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._start = start
        self._loop = loop or asyncio.get_running_loop()

    def time(self) -> float:
        return self._start + self._loop.time()

    def monotonic(self) -> float:
        return self._loop.time()

    def wait(self, parker: Parker, timeout: float | None) -> bool:
        raise FlowError("a LoopClock is for flows on asyncio; on a thread use conquiet.testing.AutojumpClock")


class _JumpingSelector(selectors.BaseSelector):
    """A selector that advances virtual time instead of waiting."""

    def __init__(self, patience: float) -> None:
        self._real = selectors.DefaultSelector()
        self._patience = patience
        self.now = 0.0
        self.outside = 0  # calls in executors

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = self._real.select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if timeout is None or self.outside:
            ready = self._real.select(self._patience)
            if not ready:
                raise FlowError(
                    f"virtual time is stuck at {self.now:g} s: the loop waits for something that does not happen"
                )
            return ready
        self.now += timeout
        return []

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.modify(fileobj, events, data)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._real.get_map()

    def close(self) -> None:
        self._real.close()
