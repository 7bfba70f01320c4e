"""For tests, ours and yours: clocks that need no real time, for threads, for asyncio and moved by hand."""

from conquiet.testing.autojump import AutojumpClock
from conquiet.testing.clock import ManualClock
from conquiet.testing.virtual import VirtualDriver
from conquiet.testing.virtual_loop import LoopClock, VirtualLoop

__all__ = ["AutojumpClock", "LoopClock", "ManualClock", "VirtualDriver", "VirtualLoop"]
