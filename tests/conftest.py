"""For the whole suite: the plugins it runs with, and campaigns without time limits."""

from __future__ import annotations

import pytest

from tests import campaign

pytest_plugins = [
    "pytester",
    "tests.interruption",
    "tests.ledger",
    "tests.conftest_servers",
    "tests.faults.figures",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if campaign.FULL:
        for item in items:  # the nearest marker counts: a limit that fits a twentieth does not fit the whole
            item.add_marker(pytest.mark.timeout(0), append=False)
