"""One outage is one log line when it begins and one when it ends, whichever part of the worker notices."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import pytest
from prometheus_client import REGISTRY

from conquiet.errors import StoreUnavailableError
from conquiet.flow import Call, Flow, Signal, Sleep, run
from conquiet.jobs.worker.outage import Outage
from conquiet.testing import ManualClock

AWAY = StoreUnavailableError("not reached")
pytestmark = pytest.mark.clause("J-23")


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.WARNING, "conquiet.jobs")
    return lambda: caplog.messages


def asking(*steps: float) -> Flow[str]:
    for seconds in steps:
        yield Sleep(seconds)
    return "answer"


def pauses(outage: Outage, attempts: range) -> list[float]:
    """How long each attempt pauses, without sleeping."""
    seconds = []
    for attempt in attempts:
        (effect,) = outage.pause(AWAY, attempt)
        assert isinstance(effect, Sleep)
        assert effect.seconds is not None
        seconds.append(effect.seconds)
    return seconds


def over(clock: ManualClock) -> Outage:
    """An outage that has just ended."""
    outage = Outage(clock, lambda: 0.5)
    pauses(outage, range(1))
    clock.advance(7.0)
    run(outage.watch(asking()))
    return outage


def test_a_connection_that_broke_in_the_outage_is_no_second_one(said: Callable[[], list[str]]) -> None:
    """Another lane notices its broken connection later. Only when a new connection fails, too, is it another outage."""
    clock = ManualClock()
    outage = over(clock)
    clock.advance(1.0)
    pauses(outage, range(1))
    assert (outage.total, len(said())) == (1, 2)
    pauses(outage, range(1, 2))
    assert (outage.total, len(said())) == (2, 3)


def test_what_an_outage_costs_is_one_line_however_many_lanes(
    said: Callable[[], list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    outage = over(clock)
    caplog.clear()
    outage.discarded(["a", "b", "c", "d"], "the lease was lost")
    outage.discarded(["e"], "the lease was lost")
    outage.discarded([], "the lease was lost")
    assert said() == ["4 jobs (a, b, c, …): the lease was lost"]
    caplog.clear()
    clock.advance(60.0)
    for job_id in ("f", "g"):  # by no outage: each is somebody's fault
        outage.discarded([job_id], "the lease was lost")
    assert said() == ["job f: the lease was lost", "job g: the lease was lost"]


@pytest.mark.parametrize("random", [0.0, 0.5, 0.999])
def test_pauses_grow_with_jitter_up_to_a_limit(random: float) -> None:
    clock = ManualClock()
    found = pauses(Outage(clock, lambda: random), range(12))
    assert found == pytest.approx([0.05 + random * min(0.1 * 2**n, 5.0) for n in range(12)])


def test_it_is_said_once_however_many_notice(said: Callable[[], list[str]]) -> None:
    clock = ManualClock()
    outage = Outage(clock, lambda: 0.5)
    assert run(outage.watch(asking())) == "answer"
    pauses(outage, range(5))
    assert outage.total == 1
    clock.advance(7.0)
    for _ in range(3):
        run(outage.watch(asking()))
    clock.advance(60.0)
    pauses(outage, range(1))
    assert said() == [
        "the job store does not answer; retrying until it does: not reached",
        "the job store answers again, after 7.0 s",
        "the job store does not answer; retrying until it does: not reached",
    ]


def test_an_answer_to_what_was_asked_before_the_failure_does_not_end_it(
    said: Callable[[], list[str]],
) -> None:
    """The answer was on its way when the store failed."""
    clock = ManualClock()
    outage = Outage(clock, lambda: 0.5)
    early = outage.watch(asking(0.0))
    next(early)
    clock.advance(1.0)
    pauses(outage, range(1))
    with pytest.raises(StopIteration):
        early.send(None)
    assert len(said()) == 1
    clock.advance(1.0)
    run(outage.watch(asking()))
    assert len(said()) == 2


def test_threads_that_fail_at_the_same_moment_say_it_once(said: Callable[[], list[str]]) -> None:
    for _ in range(30):
        outage = Outage(ManualClock(), lambda: 0.5)
        both = threading.Barrier(4)

        def fail(outage: Outage = outage, both: threading.Barrier = both) -> None:
            both.wait()
            next(outage.pause(AWAY, 0))

        threads = [threading.Thread(target=fail) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert outage.total == 1
    assert len(said()) == 30


def test_an_outage_is_counted_and_its_seconds_while_it_lasts() -> None:
    def value(name: str) -> float:
        return REGISTRY.get_sample_value(f"conquiet_jobs_{name}_total")

    clock = ManualClock()
    outage = Outage(clock, lambda: 0.5)
    before, seconds = value("outages"), value("outage_seconds")
    next(outage.pause(AWAY, 0))
    assert value("outages") == before + 1
    clock.advance(4)
    next(outage.pause(AWAY, 1))
    assert value("outage_seconds") == pytest.approx(seconds + 4)
    clock.advance(3)
    run(outage.watch(asking()))
    assert value("outage_seconds") == pytest.approx(seconds + 7)
    assert value("outages") == before + 1


def test_a_pause_can_be_cut_short() -> None:
    wake = Signal()
    (effect,) = Outage(ManualClock(), lambda: 0.5).pause(AWAY, 0, wake)
    assert isinstance(effect, Sleep)
    assert effect.wake == (wake,)


def test_what_fails_otherwise_is_raised() -> None:
    def fail() -> None:
        raise LookupError

    def broken() -> Flow[None]:
        yield Call(fail)

    outage = Outage(ManualClock(), lambda: 0.5)
    with pytest.raises(LookupError):
        run(outage.watch(broken()))
    assert outage.total == 0
