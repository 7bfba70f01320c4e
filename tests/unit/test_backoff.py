from __future__ import annotations

import random
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conquiet.backoff import exponential, full_jitter


@pytest.mark.parametrize(
    ("base", "multiplier", "attempt", "cap", "delay"),
    [
        (0.5, 2, 0, 0, 0.5),
        (0.5, 2, 3, 0, 4.0),
        (0.5, 2, 10, 30, 30),
        (1.5, 1, 1_000_000, 0, 1.5),
        (0, 2, 1_000_000, 0, 0.0),
        (1, 2, 10**9, 60, 60),
        (1, 2, 10**9, 0, sys.float_info.max),
        (1e308, 10, 1, 0, sys.float_info.max),
    ],
)
def test_exponential(base: float, multiplier: float, attempt: int, cap: float, delay: float) -> None:
    assert exponential(base, multiplier, attempt, cap) == delay


@given(st.floats(0, 1e6), st.floats(1, 100), st.integers(0, 100), st.floats(0, 1e6), st.integers(0, 2**32))
def test_exponential_is_the_plain_formula_and_jitter_stays_below_it(
    base: float, multiplier: float, attempt: int, cap: float, seed: int
) -> None:
    formula = base * multiplier**attempt
    assert exponential(base, multiplier, attempt, cap) == (min(formula, cap) if cap > 0 else formula)
    drawn = full_jitter(base, attempt, cap, random.Random(seed).random)
    assert 0 <= drawn <= exponential(base, 2, attempt, cap)


def test_full_jitter_takes_its_chance_from_outside() -> None:
    assert full_jitter(0.5, 3, 30.0, lambda: 0.25) == 1.0
    assert full_jitter(0.5, 300, 30.0, lambda: 0.5) == 15.0
