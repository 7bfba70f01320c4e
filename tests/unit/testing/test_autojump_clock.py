"""The clock for threads: it jumps to the earliest time when all threads wait, and never while one runs."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import pytest

from conquiet.clock import Parker
from conquiet.errors import CallTimeoutError, FlowError
from conquiet.flow import Beside, Call, Flow, Signal, Sleep, join, run
from conquiet.testing import AutojumpClock
from tests.campaign import campaign_size


def test_sleeping_takes_no_real_time() -> None:
    began = time.monotonic()
    with AutojumpClock(start=100.0) as clock:
        clock.sleep(3600)
        assert (clock.time(), clock.monotonic()) == (3700.0, 3600.0)
    assert time.monotonic() - began < 5


def test_a_wake_ends_a_wait_before_its_time() -> None:
    with AutojumpClock() as clock:
        parker = Parker()
        parker.wake()
        assert clock.wait(parker, 60) is True
        assert clock.wait(parker, 60) is False
        assert clock.wait(parker, 0) is False
        assert clock.monotonic() == 60


def test_children_wake_in_the_order_of_their_times() -> None:
    with AutojumpClock() as clock:
        seen: list[float] = []

        def child(seconds: float) -> Flow[None]:
            yield Sleep(seconds)
            seen.append(clock.monotonic())

        def main() -> Flow[None]:
            children = []
            for seconds in (30, 10, 20):
                one = yield Beside(child(seconds))
                children.append(one)
            for one in children:
                yield from join(one)

        run(main(), clock=clock)
        assert seen == [10, 20, 30]


def test_a_call_past_its_time_limit_is_abandoned_at_that_time_and_ends_with_the_block() -> None:
    ended: list[float] = []
    with AutojumpClock() as clock:

        def slow() -> None:
            clock.sleep(100)
            ended.append(clock.monotonic())

        def main() -> Flow[float]:
            with pytest.raises(CallTimeoutError):
                yield Call(slow, timeout=7)
            return clock.monotonic()

        assert run(main(), clock=clock) == 7
        assert ended == []
    assert ended == [100]


def test_a_thread_that_runs_holds_the_clock() -> None:
    go_on = threading.Event()
    with AutojumpClock() as clock:

        def running() -> float:
            go_on.wait(10)  # real time: this thread does not wait on the clock
            return clock.monotonic()

        def main() -> Flow[Any]:
            return (yield Call(running, timeout=5))

        releasing = threading.Timer(0.05, go_on.set)
        releasing.start()
        assert run(main(), clock=clock) == 0
        releasing.join()


@pytest.mark.campaign
def test_no_wake_and_no_running_thread_is_ever_jumped_over() -> None:
    """A ring of threads passes a token. Its holder works for a random real time. No virtual time passes."""
    rounds = campaign_size(2_000)
    with AutojumpClock() as clock:
        ring = [Signal() for _ in range(6)]
        seen: list[float] = []

        def member(number: int) -> Flow[None]:
            pick = random.Random(number)
            for _ in range(rounds):
                yield Sleep(1000, ring[number])
                ring[number].clear()
                if pick.random() < 0.5:
                    time.sleep(pick.random() * 0.0002)
                seen.append(clock.monotonic())
                ring[(number + 1) % len(ring)].set()

        def main() -> Flow[None]:
            children = []
            for number in range(len(ring)):
                child = yield Beside(member(number))
                children.append(child)
            ring[0].set()
            for child in children:
                yield from join(child)

        run(main(), clock=clock)
        assert seen == [0.0] * (rounds * len(ring))


def test_a_thread_on_its_way_to_its_job_holds_the_clock() -> None:
    for _ in range(200):
        with AutojumpClock() as clock:

            def main(clock: AutojumpClock = clock) -> Flow[Any]:
                return (yield Call(clock.monotonic, timeout=1))

            assert run(main(), clock=clock) == 0


def test_a_run_in_which_all_wait_for_nothing_is_an_error() -> None:
    clock = AutojumpClock(patience=0.05)
    with pytest.raises(FlowError, match="none can resume"):
        clock.wait(Parker(), None)


def test_a_run_in_which_one_blocks_on_something_else_is_an_error() -> None:
    released = threading.Event()
    clock = AutojumpClock(patience=0.05)

    def main() -> Flow[None]:
        yield Call(released.wait, timeout=5)

    with pytest.raises(FlowError, match="1 of them neither wait on it nor end"):
        run(main(), clock=clock)
    released.set()
    clock.finish()


def test_jobs_of_others_do_not_hold_the_clock() -> None:
    released = threading.Event()
    with AutojumpClock() as other:

        def beside() -> Flow[None]:
            yield Call(released.wait)

        def main() -> Flow[None]:
            yield Beside(beside())
            with AutojumpClock() as clock:
                clock.sleep(5)
            released.set()

        run(main(), clock=other)
