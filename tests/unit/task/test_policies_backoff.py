"""The delays: the arithmetic of the policies, and that the engine waits exactly that long."""

from __future__ import annotations

import sys
import time
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conquiet.flow import ThreadCalls
from conquiet.task import ConsumerTask, Transaction
from conquiet.task.lifecycle import Lifecycle
from conquiet.task.loop import ConsumeLoop, Source
from conquiet.task.mixins.policies import EmptyQueuePolicy, RetryPolicy
from conquiet.testing import VirtualDriver
from tests.unit.task.both import policy

pytestmark = pytest.mark.clause("E-27")

LARGEST = sys.float_info.max


@pytest.mark.parametrize("kind", [RetryPolicy, EmptyQueuePolicy])
@given(
    backoff=st.just(0.0) | st.floats(1e-6, 1e6),
    multiplier=st.floats(1, 1e3),
    cap=st.just(0.0) | st.floats(1e-6, 1e6),
    k=st.integers(0, 400),
)
def test_delay_k_is_backoff_times_multiplier_to_the_k_under_the_cap(
    kind: Any, backoff: float, multiplier: float, cap: float, k: int
) -> None:
    power = Fraction(multiplier) ** k
    # Beyond the range of a float (10^300 years) the delay is the cap, or the largest float.
    exact = (
        min(Fraction(backoff) * power, Fraction(LARGEST))
        if power < LARGEST
        else Fraction(LARGEST * bool(backoff))
    )
    expected = min(exact, Fraction(cap)) if cap > 0 else exact
    delay = kind(backoff=backoff, backoff_multiplier=multiplier, backoff_cap=cap).delay(k)
    assert delay == pytest.approx(float(expected), rel=1e-9)
    assert delay <= (cap if cap > 0 else LARGEST)


@pytest.mark.parametrize("kind", [RetryPolicy, EmptyQueuePolicy])
@pytest.mark.parametrize("k", [1_100, 10**6, 10**9, 2**63, 10**30])
def test_huge_attempts_neither_overflow_nor_take_long(kind: Any, k: int) -> None:
    started = time.perf_counter()
    assert kind(backoff=0.5, backoff_multiplier=2, backoff_cap=30).delay(k) == 30
    assert kind(backoff=0.5, backoff_multiplier=2, backoff_cap=0).delay(k) == LARGEST
    assert kind(backoff=0.5, backoff_multiplier=1, backoff_cap=0).delay(k) == 0.5
    assert kind(backoff=0, backoff_multiplier=1e9, backoff_cap=0).delay(k) == 0
    assert time.perf_counter() - started < 1


class Failing(ConsumerTask):
    def __init__(self, driver: VirtualDriver) -> None:
        self._driver = driver
        self.at: list[float] = []

    def process_transaction(self, transaction: Transaction) -> None:
        self.at.append(self._driver.clock.monotonic())
        raise RuntimeError("as always")


@pytest.mark.parametrize(
    ("retry", "delays"),
    [
        (RetryPolicy(5), [0, 0, 0, 0]),
        (RetryPolicy(5, backoff=0.5), [0.5, 1, 2, 4]),
        (RetryPolicy(5, backoff=0.5, backoff_multiplier=3, backoff_cap=4), [0.5, 1.5, 4, 4]),
        (RetryPolicy(4, backoff=2, backoff_multiplier=1), [2, 2, 2]),
        (RetryPolicy(3, backoff=9, backoff_cap=1), [1, 1]),
    ],
)
def test_the_engine_waits_so_before_each_retry(retry: RetryPolicy, delays: list[float]) -> None:
    driver = VirtualDriver()
    task = Failing(driver)
    outcome = driver.run(Lifecycle(task, policy(process=retry), driver.clock).run(Transaction("a")))
    assert outcome.attempts == retry.max_attempts
    assert [after - before for before, after in pairwise(task.at)] == delays


def test_ten_thousand_attempts_without_a_cap_end() -> None:
    driver = VirtualDriver()
    task = Failing(driver)
    retry = RetryPolicy(10_000, backoff=1e-300, backoff_multiplier=1.08)
    outcome = driver.run(Lifecycle(task, policy(process=retry), driver.clock).run(Transaction("a")))
    assert outcome.attempts == len(task.at) == 10_000


def test_a_streaming_loop_waits_so_after_each_empty_fetch_and_starts_anew_after_a_full_one() -> None:
    driver = VirtualDriver()
    found = iter([0, 0, 0, 0, 1, 0, 0, 1, 1, 0])
    at: list[float] = []

    def fetch(size: int) -> list[Transaction]:
        at.append(driver.clock.monotonic())
        count = next(found, None)
        if count is None:
            loop.stop()
        return [Transaction(str(len(at)))] * (count or 0)

    class Quiet(ConsumerTask):
        def process_transaction(self, transaction: Transaction) -> None:
            pass

    empty = EmptyQueuePolicy(backoff=0.5, backoff_multiplier=2, backoff_cap=3)
    loop = ConsumeLoop(
        Quiet(),
        Source(fetch, None, None),
        policy(streaming=True, empty_queue=empty),
        driver.clock,
        ThreadCalls(),
        None,
    )
    report = driver.run(loop.run())
    assert report.succeeded == 3
    waits = [after - before for before, after in pairwise(at)]
    assert waits == [0.5, 1, 2, 3, 0, 0.5, 1, 0, 0, 0.5]
