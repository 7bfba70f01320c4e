"""For tests, ours and yours: inline calls of an app, and clocks that need no real time.

`store_suite`, the tests that every job store must pass, is a separate package because it needs pytest.
"""

from conquiet.testing.autojump import AutojumpClock
from conquiet.testing.clock import ManualClock
from conquiet.testing.inline_mode import inline
from conquiet.testing.queued_calls import assert_enqueued, enqueued
from conquiet.testing.virtual import VirtualDriver
from conquiet.testing.virtual_loop import LoopClock, VirtualLoop

__all__ = [
    "AutojumpClock",
    "LoopClock",
    "ManualClock",
    "VirtualDriver",
    "VirtualLoop",
    "assert_enqueued",
    "enqueued",
    "inline",
]
