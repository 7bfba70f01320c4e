"""An app on every durable store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from conquiet import Conquiet
from conquiet.jobs import RetrySchedule

QUICK = RetrySchedule(max_retries=3, base_seconds=0.01, max_seconds=0.01)


@pytest.fixture(params=["sqlite", "postgresql"])
def dsn(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgres_dsn"))
    return f"sqlite:///{tmp_path / 'jobs.db'}"


@pytest.fixture
def app(dsn: str) -> Iterator[Conquiet]:
    with Conquiet(dsn, retry=QUICK) as opened:
        yield opened


@pytest.fixture
def memory() -> Iterator[Conquiet]:
    """An app in memory, for tests where the store does not matter."""
    with Conquiet("memory://", retry=QUICK) as opened:
        yield opened
