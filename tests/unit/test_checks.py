"""Arguments are checked before they are used, and refused with the error of the room that got them."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest

from conquiet.checks import checked_int, checked_name, checked_queues, checked_seconds
from conquiet.errors import JobConfigError

_int = partial(checked_int, error=JobConfigError)
_name = partial(checked_name, error=JobConfigError)
_queues = partial(checked_queues, error=JobConfigError)
_seconds = partial(checked_seconds, error=JobConfigError)


@pytest.mark.parametrize("name", ["a", "x" * 255, "🚀" * 255, " ", "o'brien", "\n"])
def test_names_that_every_store_can_hold(name: str) -> None:
    assert _name("queue", name) is name


@pytest.mark.parametrize("name", ["", "x" * 256, "a\0", "\ud800", None, 1, b"a", ["a"]])
def test_names_that_are_refused(name: Any) -> None:
    with pytest.raises(JobConfigError, match="queue") as refused:
        _name("queue", name)
    str(refused.value).encode()  # the message itself can be encoded


def test_a_long_name_is_not_repeated_in_full() -> None:
    with pytest.raises(JobConfigError, match="1000000") as refused:
        _name("id", "y" * 1_000_000)
    assert len(str(refused.value)) < 200


def test_queues_are_a_name_or_names_each_once() -> None:
    assert _queues("abc") == ("abc",)
    assert _queues(["b", "a", "b"]) == ("b", "a")
    for wrong in ([], (), None, 7, ["a", ""]):
        with pytest.raises(JobConfigError, match="queue"):
            _queues(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [True, 1.0, "1", None, -1, 11])
def test_integers_are_integers_in_range(value: Any) -> None:
    with pytest.raises(JobConfigError, match="from 0 to 10"):
        _int("limit", value, 0, 10)
    assert _int("limit", 10, 0, 10) == 10


@pytest.mark.parametrize("value", [True, "1", None, -1, -1e-9, math.nan, math.inf, 1e300, 10**400])
def test_seconds_are_a_number_of_them(value: Any) -> None:
    with pytest.raises(JobConfigError, match="delay must be a number of seconds"):
        _seconds("delay", value)


def test_zero_seconds_are_some_where_they_may_be() -> None:
    assert _seconds("delay", 0) == 0.0
    assert _seconds("delay", 2.5) == 2.5
    with pytest.raises(JobConfigError, match="above 0"):
        _seconds("ttl", 0, above_zero=True)


def test_seconds_may_lie_in_the_past_where_that_makes_sense() -> None:
    assert _seconds("timeout", -1, or_negative=True) == -1.0
    for wrong in (math.nan, -math.inf, -1e300, None):
        with pytest.raises(JobConfigError, match="timeout must be a number of seconds, not"):
            _seconds("timeout", wrong, or_negative=True)


def test_a_number_may_have_no_upper_bound() -> None:
    assert _int("count", 10**30, 1) == 10**30
    with pytest.raises(JobConfigError, match="count must be an int of at least 1, not 0"):
        _int("count", 0, 1)
