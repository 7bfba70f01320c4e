"""Places: taken, waited for in turn, given up; in virtual time."""

from __future__ import annotations

import asyncio
import threading

import pytest

from conquiet.flow import Beside, Call, Cancelled, Child, Flow, Places, Sleep, run, run_async
from conquiet.testing import VirtualDriver


def held(places: Places, name: str, seconds: float, log: list[str], patience: float = 100.0) -> Flow[None]:
    if not (yield from places.take(patience)):
        log.append(f"{name} gave up")
        return
    try:
        log.append(name)
        yield Sleep(seconds)
    finally:
        places.give_back()


def test_places_are_given_in_the_order_of_asking() -> None:
    log: list[str] = []
    places = Places(2)

    def scene() -> Flow[float]:
        for name in "abcde":
            yield Beside(held(places, name, 1.0, log))
        yield Sleep(10.0)
        return 0.0

    VirtualDriver().run(scene())
    assert log == list("abcde")


def test_who_waits_too_long_gives_up_and_takes_no_place() -> None:
    log: list[str] = []
    places = Places(1)

    def scene() -> Flow[None]:
        yield Beside(held(places, "a", 5.0, log))
        yield Beside(held(places, "b", 1.0, log, patience=2.0))
        yield Beside(held(places, "c", 1.0, log))
        yield Sleep(20.0)
        assert (yield from places.take(0.0))

    driver = VirtualDriver()
    driver.run(scene())
    assert log == ["a", "b gave up", "c"]


def test_a_cancelled_flow_leaves_its_turn_to_the_next() -> None:
    log: list[str] = []
    places = Places(1)

    def scene() -> Flow[None]:
        yield Beside(held(places, "a", 5.0, log))
        waiting: Child[None] = yield Beside(held(places, "b", 1.0, log))
        yield Beside(held(places, "c", 1.0, log))
        yield Sleep(1.0)
        waiting.cancel()
        yield Sleep(20.0)
        with pytest.raises(Cancelled):
            waiting.result()

    VirtualDriver().run(scene())
    assert log == ["a", "c"]


def test_a_place_given_to_a_flow_that_is_cancelled_is_passed_on() -> None:
    """The turn comes, and before the flow goes on it is cancelled."""
    log: list[str] = []
    places = Places(1)
    run(places.take(0.0))

    def scene() -> Flow[None]:
        waiting: Child[None] = yield Beside(held(places, "b", 1.0, log))
        yield Sleep(1.0)
        waiting.cancel()
        yield Call(places.give_back)
        yield Sleep(5.0)
        assert (yield from places.take(0.0)), "the place is lost"
        with pytest.raises(Cancelled):
            waiting.result()

    VirtualDriver().run(scene())
    assert log == []


def test_threads_and_event_loops_share_places() -> None:
    places = Places(3)
    inside, most, lock = 0, 0, threading.Lock()

    def enter(step: int) -> None:
        nonlocal inside, most
        with lock:
            inside += step
            most = max(most, inside)

    def stay() -> Flow[None]:
        assert (yield from places.take(60.0))
        enter(1)
        try:
            yield Sleep(0.001)
        finally:
            enter(-1)
            places.give_back()

    async def many() -> None:
        await asyncio.gather(*(run_async(stay()) for _ in range(100)))

    threads = [threading.Thread(target=lambda: [run(stay()) for _ in range(20)]) for _ in range(10)]
    for thread in threads:
        thread.start()
    asyncio.run(many())
    for thread in threads:
        thread.join(60)
    assert (inside, most) == (0, 3)
