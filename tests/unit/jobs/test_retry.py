"""The retry schedule."""

from __future__ import annotations

import math
from typing import Any

import pytest

from conquiet.jobs import JobConfigError, RetrySchedule


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
