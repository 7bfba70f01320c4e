from __future__ import annotations

import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime

import pytest

from conquiet.clock import SYSTEM_CLOCK, Parker, utc
from conquiet.testing import ManualClock


def test_utc_is_aware() -> None:
    assert utc(0) == datetime(1970, 1, 1, tzinfo=UTC)


def test_a_wake_before_the_wait_is_not_lost() -> None:
    parker = Parker()
    parker.wake()
    assert SYSTEM_CLOCK.wait(parker, None) is True
    assert SYSTEM_CLOCK.wait(parker, 0) is False


def test_a_signal_handler_can_wake_the_thread_that_it_interrupts() -> None:
    parker = Parker()
    main = threading.get_ident()
    before = signal.signal(signal.SIGUSR1, lambda *_: parker.wake())
    try:
        timer = threading.Timer(0.05, lambda: signal.pthread_kill(main, signal.SIGUSR1))
        timer.start()
        assert parker.park(30) is True
        timer.join()
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_wait_longer_than_the_system_can_count_is_just_long() -> None:
    parker = Parker()
    parker.wake()
    assert parker.park(1e300) is True


def test_manual_clock_moves_only_when_told() -> None:
    clock = ManualClock(start=100.0)
    assert (clock.time(), clock.monotonic()) == (100.0, 0.0)
    clock.advance(2.5)
    assert (clock.time(), clock.monotonic()) == (102.5, 2.5)
    with pytest.raises(ValueError, match="does not go back"):
        clock.advance(-1)


def test_manual_clock_wakes_whoever_waits_when_the_time_comes() -> None:
    clock = ManualClock()
    ended: list[bool] = []
    thread = threading.Thread(target=lambda: ended.append(clock.wait(Parker(), 60)))
    thread.start()
    clock.wait_for_sleepers(1)
    clock.advance(59)
    assert ended == []
    clock.advance(1)
    thread.join(10)
    assert ended == [False]


def test_manual_clock_says_when_a_wake_ended_the_wait() -> None:
    clock, parker = ManualClock(), Parker()
    parker.wake()
    assert clock.wait(parker, 60) is True
    parker.wake()
    assert clock.wait(parker, None) is True
    assert clock.wait(parker, 0) is False


_LATE_SIGNAL = """
import signal, sys, threading
from conquiet.clock import Parker

parker = Parker()
signal.signal(signal.SIGTERM, lambda *_: parker.wake())
elsewhere = threading.Thread(target=sys.stdin.read, daemon=True)
elsewhere.start()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # this thread's waits are not interrupted
print("waiting", flush=True)
print(parker.park(float(sys.argv[1])), flush=True)
"""


def test_a_signal_that_does_not_interrupt_the_wait_is_heard_soon() -> None:
    """A signal that arrives just before a wait does not interrupt it. Here another thread receives it: the same state."""
    command = [sys.executable, "-c", _LATE_SIGNAL, "3600"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "waiting\n"
            process.send_signal(signal.SIGTERM)
            assert process.communicate(timeout=60)[0] == "True\n"
        finally:
            process.kill()
