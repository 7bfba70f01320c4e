"""For tests, ours and yours: clocks that need no real time, for threads, for asyncio and moved by hand.

In modules of their own: `history` (what happened, and whether it may), `recording` (of real stores and queues), `wire` (a
proxy that cuts connections), `cancelling` (of asyncio calls, at any await), `store_suite`, `verification`.
"""

from conquiet.testing.autojump import AutojumpClock
from conquiet.testing.clock import ManualClock
from conquiet.testing.virtual import VirtualDriver
from conquiet.testing.virtual_loop import LoopClock, VirtualLoop

__all__ = ["AutojumpClock", "LoopClock", "ManualClock", "VirtualDriver", "VirtualLoop"]
