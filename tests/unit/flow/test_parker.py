"""A wait ends when its time is up, even if the thread was suspended for longer."""

from __future__ import annotations

import signal
import threading
import time

from conquiet.clock import Parker


def test_a_signal_handler_that_takes_longer_than_is_left_does_not_make_the_wait_endless() -> None:
    parker = Parker()
    before = signal.signal(signal.SIGALRM, lambda *_: time.sleep(0.1))
    rescue = threading.Timer(5, parker.wake)
    rescue.start()
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        assert parker.park(0.05) is False, "the test had to wake it: the wait did not end"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        rescue.cancel()
        rescue.join()


def test_wakes_are_one_wake_until_somebody_waits() -> None:
    parker = Parker()
    parker.wake()
    parker.wake()
    assert parker.park(0) is True
    assert parker.park(0) is False
