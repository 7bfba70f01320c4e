"""Both variants of the engine, every job store."""

from __future__ import annotations

from pathlib import Path

import pytest

from conquiet.queue import QueueConfig
from tests.integration.connectors.variants import VARIANTS


@pytest.fixture(params=VARIANTS)
def variant(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["sqlite", "postgresql"])
def dsn(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgres_dsn"))
    return f"sqlite:///{tmp_path / 'jobs.db'}"


@pytest.fixture
def config() -> QueueConfig:
    return QueueConfig("orders", "billing", "worker-1", block_ms=50)
