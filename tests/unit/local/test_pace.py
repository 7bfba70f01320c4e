"""The pace of calls to a platform, on a clock that the test moves."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from conquiet.local import LocalConfigError, Pace
from conquiet.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def pace(clock: ManualClock) -> Pace:
    return Pace(clock=clock)


@pytest.mark.clause("W-34")
def test_a_platform_that_does_not_ask_is_not_slowed_down(pace: Pace) -> None:
    assert [pace.wait_for("clips") for _ in range(100)] == [0.0] * 100
    pace.answered("clips")
    assert pace.spacing("clips") == 0.0


@pytest.mark.clause("W-34")
def test_no_call_begins_before_the_time_the_platform_asked_for(pace: Pace, clock: ManualClock) -> None:
    assert pace.asked("clips", 30.0) == 30.0
    assert pace.wait_for("clips") == 30.0
    assert pace.wait_for("photos") == 0.0
    clock.advance(29.75)
    assert pace.wait_for("clips") > 0.0
    clock.advance(0.25)
    assert pace.wait_for("clips") == 0.0


@pytest.mark.clause("W-34")
def test_each_time_it_asks_the_calls_are_further_apart_and_each_answer_halves_that(
    pace: Pace, clock: ManualClock
) -> None:
    waits = []
    for _ in range(8):
        waits.append(pace.asked("clips"))
        clock.advance(waits[-1])
        assert pace.wait_for("clips") == 0.0
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]
    spacings = []
    while pace.spacing("clips"):
        pace.answered("clips")
        spacings.append(pace.spacing("clips"))
        clock.advance(spacings[-1])
        assert pace.wait_for("clips") == 0.0
    assert spacings == [30, 15, 7.5, 3.75, 1.875, 0]
    assert [pace.wait_for("clips") for _ in range(10)] == [0.0] * 10


@pytest.mark.clause("W-34")
def test_ten_refusals_at_once_are_one_request_for_fewer_calls(pace: Pace, clock: ManualClock) -> None:
    for _ in range(10):
        pace.asked("clips", 5.0)
    assert pace.spacing("clips") == 1.0
    pace.answered("clips")  # a call that began before the refusals
    assert pace.spacing("clips") == 1.0
    assert pace.wait_for("clips") == 5.0


@pytest.mark.clause("W-34")
def test_those_who_wait_are_told_different_times(pace: Pace, clock: ManualClock) -> None:
    pace.asked("clips", 10.0)
    assert [pace.wait_for("clips") for _ in range(4)] == [10.0, 11.0, 12.0, 13.0]
    for _ in range(4):  # each comes at its time, and may call
        clock.advance(10.0 if clock.monotonic() == 0 else 1.0)
        assert pace.wait_for("clips") == 0.0


@pytest.mark.clause("W-34")
def test_nobody_is_told_to_wait_longer_than_the_longest_wait(clock: ManualClock) -> None:
    pace = Pace(1.0, 10.0, 100.0, clock)
    assert pace.asked("clips", 1e9) == 100.0
    assert max(pace.wait_for("clips") for _ in range(1_000)) == 100.0


@pytest.mark.clause("W-34")
def test_it_is_forgotten_when_nobody_calls(pace: Pace, clock: ManualClock) -> None:
    for _ in range(6):
        clock.advance(pace.asked("clips"))
    assert pace.spacing("clips") == 32.0
    clock.advance(3_600.0)
    assert pace.spacing("clips") == 0.0
    assert [pace.wait_for("clips") for _ in range(3)] == [0.0] * 3


@pytest.mark.clause("W-34")
def test_the_beginning_and_the_end_are_logged(
    pace: Pace, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "conquiet.local")
    clock.advance(pace.asked("clips", 30.0))
    pace.answered("clips")
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "clips asks for fewer calls: the next one in 30 s, then one each 1 s"),
        ("INFO", "clips no longer asks for fewer calls"),
    ]


@pytest.mark.clause("W-34")
def test_threads_do_not_call_together(pace: Pace, clock: ManualClock) -> None:
    clock.advance(pace.asked("clips"))
    gate, waits = threading.Barrier(20), []

    def ask() -> None:
        gate.wait(10)
        waits.append(pace.wait_for("clips"))

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sorted(waits) == [float(number) for number in range(20)]


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"first_seconds": 0}, "first_seconds must be a number of seconds, above 0"),
        ({"longest_seconds": "x"}, "longest_seconds must be a number of seconds"),
        ({"longest_wait_seconds": -1}, "longest_wait_seconds must be a number of seconds"),
        ({"first_seconds": 100}, "first_seconds must not be above longest_seconds"),
    ],
)
def test_wrong_settings_are_refused_and_named(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(LocalConfigError, match=named):
        Pace(**wrong)
