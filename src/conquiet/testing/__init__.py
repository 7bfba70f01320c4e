"""For tests, ours and yours: a clock that is moved by hand, and a driver that runs flows in virtual time."""

from conquiet.testing.clock import ManualClock
from conquiet.testing.virtual import VirtualDriver

__all__ = ["ManualClock", "VirtualDriver"]
