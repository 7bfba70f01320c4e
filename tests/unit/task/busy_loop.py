"""An event loop on which coroutines that never wait take time: `spend` is what a computation does to the clock."""

from __future__ import annotations

import asyncio

from conquiet.testing import VirtualLoop


class BusyLoop(VirtualLoop):
    def spend(self, seconds: float) -> None:
        """Let time pass without giving anybody else a chance to run."""
        self._jumping.now += seconds


def spend(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, BusyLoop)
    loop.spend(seconds)
