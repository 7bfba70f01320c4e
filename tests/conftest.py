"""Setup of the whole suite: its plugins, campaigns without time limits, and which tests run in one process."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import settings

from tests import campaign

# A test has one time limit, pytest's. Hypothesis' own, of 0.2 s for an example, fails on a busy machine.
settings.register_profile("suite", deadline=None)
settings.load_profile("suite")

pytest_plugins = [
    "pytester",
    "tests.interruption",
    "tests.ledger",
    "tests.room_coverage",
    "tests.conftest_servers",
    "tests.faults.figures",
]


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if campaign.FULL:  # the nearest marker wins: limits are meant for a twentieth of a campaign
            item.add_marker(pytest.mark.timeout(0), append=False)
        if (group := _group(item)) is not None:
            item.add_marker(pytest.mark.xdist_group(group))


def _group(item: pytest.Item) -> str | None:
    """Tests of one group run one after the other in one process (`--dist loadgroup`), the others in any process.

    Tests that share a Spark session are a group, because starting a session takes longer than most tests. So are the
    tests of a file that share a module-scoped fixture. A test can name its own group with a marker.
    """
    if item.get_closest_marker("xdist_group") is not None:
        return None
    fixtures = getattr(item, "_fixtureinfo").name2fixturedefs  # noqa: B009 - pytest has no public name for it
    if "spark" in fixtures:
        return "spark"
    if any(definitions and definitions[-1].scope == "module" for definitions in fixtures.values()):
        return item.location[0]
    return None


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
