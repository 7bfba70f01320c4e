"""The simulated machines themselves: death, pauses, wrong clocks, threads that take turns."""

from __future__ import annotations

import random

import pytest

from conquiet.clock import Parker
from conquiet.flow import Beside, Flow, Sleep, shielded
from tests.simulation.stage import Stage
from tests.simulation.world import Livelock, World


@pytest.fixture
def world() -> World:
    return World(random.Random(1))


def ticking(world: World, seen: list[float], every: float = 1.0) -> Flow[None]:
    while True:
        seen.append(world.clock.monotonic())
        yield Sleep(every)


def test_a_killed_process_does_nothing_any_more(world: World) -> None:
    seen: list[float] = []
    cleaned: list[str] = []

    def dying() -> Flow[None]:
        yield Beside(ticking(world, seen))
        try:
            yield Sleep(None)
        finally:
            yield from shielded(clean_up())

    def clean_up() -> Flow[None]:
        yield Sleep(1.0)
        cleaned.append("it should not come this far")

    process = world.process("p")

    def main() -> Flow[None]:
        world.spawn(process, dying())
        yield Sleep(2.5)
        world.kill(process)
        yield Sleep(10.0)

    world.play(main())
    assert seen == [0.0, 1.0, 2.0]
    assert cleaned == []


def test_a_paused_process_goes_on_where_it_was(world: World) -> None:
    seen: list[float] = []
    process = world.process("p")

    def main() -> Flow[None]:
        world.spawn(process, ticking(world, seen))
        yield Sleep(1.5)
        world.pause(process, 5.0)
        yield Sleep(6.2)

    world.play(main())
    assert seen == [0.0, 1.0, 6.5, 7.5]


def test_clocks_are_off_and_run_at_their_own_speed(world: World) -> None:
    seen: list[float] = []
    process = world.process("fast", offset=3600.0, rate=2.0)

    def main() -> Flow[None]:
        world.spawn(process, ticking(world, seen))
        yield Sleep(1.2)

    world.play(main())
    assert seen == [0.0, 0.5, 1.0]
    assert process.clock.time() - world.clock.time() == 3600.0
    assert process.clock.monotonic() == pytest.approx(2.4)


def test_a_livelock_is_an_error(world: World) -> None:

    def ping() -> Flow[None]:
        while True:
            yield Sleep(0.0)

    with pytest.raises(Livelock):
        world.play(ping())


def test_threads_take_turns_in_virtual_time() -> None:
    stage = Stage(random.Random(1))
    seen: list[tuple[float, str]] = []

    def act(seconds: float) -> None:
        for _ in range(3):
            stage.sleep(seconds)
            seen.append((stage.monotonic(), stage.who))

    stage.spawn(lambda: act(1.0), "one")
    stage.spawn(lambda: act(1.5), "two")
    stage.play()
    assert sorted(seen) == [
        (1.0, "one"),
        (1.5, "two"),
        (2.0, "one"),
        (3.0, "one"),
        (3.0, "two"),
        (4.5, "two"),
    ]


def test_a_thread_is_woken_by_another() -> None:
    stage = Stage(random.Random(1))
    parker = Parker()
    woken: list[tuple[bool, float]] = []

    def waits() -> None:
        woken.append((stage.wait(parker, 10.0), stage.monotonic()))
        woken.append((stage.wait(parker, 10.0), stage.monotonic()))

    def wakes() -> None:
        stage.sleep(2.0)
        parker.wake()

    stage.spawn(waits, "waits")
    stage.spawn(wakes, "wakes")
    stage.play()
    assert woken == [(True, 2.0), (False, 12.0)]


def test_a_killed_thread_ends_even_if_it_catches_everything() -> None:
    stage = Stage(random.Random(1))
    turns = 0

    def stubborn() -> None:
        nonlocal turns
        while True:
            stage.monotonic()
            try:
                stage.sleep(1.0)
            except BaseException:  # as a worker does around its handler
                continue
            turns += 1

    def kills() -> None:
        stage.sleep(3.5)
        stage.kill("group")

    stage.spawn(stubborn, "stubborn", "group")
    stage.spawn(kills, "kills")
    stage.play()
    assert turns == 3


@pytest.mark.parametrize("seed", range(5))
def test_the_order_of_threads_follows_from_the_seed(seed: int) -> None:
    def order() -> list[str]:
        stage = Stage(random.Random(seed))
        seen: list[str] = []

        def appear() -> None:
            for _ in range(5):
                stage.sleep(0.0)
                seen.append(stage.who)

        for name in "abcd":
            stage.spawn(appear, name)
        stage.play()
        return seen

    assert order() == order()


def test_an_error_on_the_stage_is_raised() -> None:
    stage = Stage(random.Random(1))

    def fails() -> None:
        raise ValueError("here")

    stage.spawn(fails, "fails")
    stage.spawn(lambda: stage.sleep(1.0), "sleeps")
    with pytest.raises(ValueError, match="here"):
        stage.play()
