"""Arguments are checked before a store is called, and error texts are made storable."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conquiet.jobs import JobConfigError, RetrySchedule
from conquiet.jobs.checks import checked_int, checked_name, checked_queues, checked_seconds, error_text


@pytest.mark.parametrize("name", ["a", "x" * 255, "🚀" * 255, " ", "o'brien", "\n"])
def test_names_that_every_store_can_hold(name: str) -> None:
    assert checked_name("queue", name) is name


@pytest.mark.parametrize("name", ["", "x" * 256, "a\0", "\ud800", None, 1, b"a", ["a"]])
def test_names_that_are_refused(name: Any) -> None:
    with pytest.raises(JobConfigError, match="queue") as refused:
        checked_name("queue", name)
    str(refused.value).encode()  # the message itself can be printed anywhere


def test_a_long_name_is_not_repeated_in_full() -> None:
    with pytest.raises(JobConfigError, match="1000000") as refused:
        checked_name("id", "y" * 1_000_000)
    assert len(str(refused.value)) < 200


def test_queues_are_a_name_or_names_each_once() -> None:
    assert checked_queues("abc") == ("abc",)
    assert checked_queues(["b", "a", "b"]) == ("b", "a")
    for wrong in ([], (), None, 7, ["a", ""]):
        with pytest.raises(JobConfigError, match="queue"):
            checked_queues(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [True, 1.0, "1", None, -1, 11])
def test_integers_are_integers_in_range(value: Any) -> None:
    with pytest.raises(JobConfigError, match="from 0 to 10"):
        checked_int("limit", value, 0, 10)
    assert checked_int("limit", 10, 0, 10) == 10


@pytest.mark.parametrize("value", [True, "1", None, -1, -1e-9, math.nan, math.inf, 1e300, 10**400])
def test_seconds_are_a_number_of_them(value: Any) -> None:
    with pytest.raises(JobConfigError, match="delay must be a number of seconds"):
        checked_seconds("delay", value)


def test_zero_seconds_are_some_where_they_may_be() -> None:
    assert checked_seconds("delay", 0) == 0.0
    assert checked_seconds("delay", 2.5) == 2.5
    with pytest.raises(JobConfigError, match="above 0"):
        checked_seconds("ttl", 0, above_zero=True)


@given(st.text(st.characters(codec=None), max_size=200))  # type: ignore[arg-type]
@pytest.mark.clause("J-27")
def test_an_error_text_can_be_stored_whatever_it_is(text: str) -> None:
    shown = error_text(text)
    assert "\0" not in shown
    shown.encode()


@pytest.mark.clause("J-27")
@pytest.mark.parametrize("length", [100, 8_192, 8_193, 1_000_000])
def test_an_error_text_is_not_endless(length: int) -> None:
    assert len(error_text("é " * (length // 2))) == min(length // 2 * 2, 8_192)


@pytest.mark.clause("J-27")
@pytest.mark.parametrize("before", range(8_140, 8_200, 3))
def test_a_password_at_the_cut_is_not_shown_in_part(before: int) -> None:
    assert "hun" not in error_text("-" * before + " postgresql://app:hunter2@db/prod")


@pytest.mark.clause("J-27")
def test_an_error_that_cannot_be_shown_is_told_so() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    assert error_text(Silent()) == "(its text cannot be shown: RuntimeError)"


@pytest.mark.clause("J-14")
def test_the_schedule_of_retries_has_the_documents_defaults() -> None:
    schedule = RetrySchedule()
    assert (schedule.max_retries, schedule.base_seconds, schedule.max_seconds) == (3, 0.5, 30.0)


@pytest.mark.parametrize(
    "options",
    [
        *({"max_retries": value} for value in (-1, True, 1.0, "3", 2**31)),
        *({"base_seconds": value} for value in (-1, math.nan, math.inf, True, "1")),
        *({"max_seconds": value} for value in (-0.1, math.nan, math.inf, True, None)),
    ],
    ids=str,
)
def test_a_schedule_that_makes_no_sense_is_refused(options: Any) -> None:
    with pytest.raises(JobConfigError, match=next(iter(options))):
        RetrySchedule(**options)
