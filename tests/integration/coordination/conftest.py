"""Fixtures: a clock, and the shared state in a real Redis whose time is that clock's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from conquiet.coordination import SharedState
from conquiet.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def state(redis_url: str, clock: ManualClock) -> Iterator[SharedState]:
    shared = SharedState(redis_url, clock=clock, timeout_seconds=60)
    yield shared
    assert not shared.is_away
    shared.close()
