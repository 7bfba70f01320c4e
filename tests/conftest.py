"""Setup of the whole suite: its plugins, campaigns without time limits, and which tests run in one process."""

from __future__ import annotations

import logging
import os
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from hypothesis import settings

from conquiet.observe import job_metrics
from tests import campaign, class_archive, interpreters

# JVMs and Python processes of tests live for seconds.
interpreters.start_compiled(os.environ)
os.environ.setdefault("SPARK_SUBMIT_OPTS", class_archive.java_options())

# The tests of a process have more queues than the first ones, which get metrics of their own.
job_metrics.MOST_SERIES = 1_000_000

# A test has one time limit, pytest's. Hypothesis' own, of 0.2 s for an example, fails on a busy machine.
settings.register_profile("suite", deadline=None)
settings.load_profile("suite")

pytest_plugins = [
    "pytester",
    "tests.distribution",
    "tests.interruption",
    "tests.ledger",
    "tests.room_coverage",
    "tests.chance",
    "tests.conftest_servers",
    "tests.faults.figures",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if campaign.FULL:
        for item in items:  # the nearest marker wins: limits are meant for a twentieth of a campaign
            item.add_marker(pytest.mark.timeout(0), append=False)


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """A command that runs inside a test sets up logging for its process. The next test starts from what was before."""
    root, ours = logging.getLogger(), logging.getLogger("conquiet")
    levels, handlers = (root.level, ours.level), root.handlers[:]
    yield
    root.setLevel(levels[0])
    ours.setLevel(levels[1])
    for handler in [one for one in root.handlers if one not in handlers]:
        root.removeHandler(handler)


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """A report travels between processes as UTF-8; hostile tests log lone surrogates, which have none."""
    return _encodable((yield))


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_encodable, value))
    return value
