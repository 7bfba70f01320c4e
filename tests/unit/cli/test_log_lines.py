"""The lines of a command's log are those of the standard formatter."""

from __future__ import annotations

import logging
import sys
from typing import Any

import pytest

from conquiet.cli.log_lines import LineFormatter


def error_info() -> Any:
    try:
        raise ValueError("no such colour")
    except ValueError:
        return sys.exc_info()


@pytest.mark.parametrize(
    "more",
    [{}, {"exc_text": "Traceback"}, {"exc_info": error_info()}, {"stack_info": "Stack"}],
    ids=["plain", "traceback", "exception", "stack"],
)
def test_a_line_is_the_one_that_the_standard_formatter_writes(more: dict[str, Any]) -> None:
    ours, standard = LineFormatter(), logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    for created in (0.0, 1_794_991_230.987, 1_794_991_230.002, 1_794_991_231.0, 1_794_991_230.5, 3e9):
        fields: dict[str, Any] = {"name": "conquiet.jobs", "levelname": "ERROR", "msg": "%s of %d", **more}
        fields |= {"args": ("a", 7), "created": created, "msecs": (created - int(created)) * 1000}
        line = ours.format(logging.makeLogRecord(fields))
        assert line == standard.format(logging.makeLogRecord(fields))
        assert " ERROR conquiet.jobs: a of 7" in line
