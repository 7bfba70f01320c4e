"""The stored history is read whatever release wrote it."""

from __future__ import annotations

import json

import pytest

from conquiet.jobs import JobState
from conquiet.jobs.backends.protocol import Settlement
from conquiet.jobs.backends.rows import attempt_json, attempts_of

OLD = [1, "anna", 100.0, 101.5, "failed", "SYSTEM", "ValueError", "no such colour"]


@pytest.mark.clause("J-27")
@pytest.mark.parametrize(
    ("more", "traceback"),
    [([], None), ([None], None), (["Traceback"], "Traceback"), (["Traceback", 7], "Traceback")],
)
def test_elements_of_other_releases_are_read(more: list[object], traceback: str | None) -> None:
    first, second = attempts_of(json.dumps([[*OLD, *more], OLD]))
    assert (first.number, first.error_message, first.traceback) == (1, "no such colour", traceback)
    assert (second.error_type, second.traceback) == ("ValueError", None)


@pytest.mark.parametrize("traceback", [None, "Traceback (most recent call last):\n  in grün\nValueError"])
def test_what_is_written_is_read(traceback: str | None) -> None:
    end = Settlement("id", "token", JobState.FAILED, "failed", error="no", traceback=traceback)
    (attempt,) = attempts_of(f"[{attempt_json(3, 'anna', 100.0, 101.5, end)}]")
    assert (attempt.number, attempt.error_message, attempt.traceback) == (3, "no", traceback)
