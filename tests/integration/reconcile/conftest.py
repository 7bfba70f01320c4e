"""Fixtures: sessions on both databases with the tables created, and breakers that no other test has used."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.orm import Session, sessionmaker

from conquiet.local import GLOBAL_CIRCUIT_BREAKER
from conquiet.reconcile import open_database

Sessions = sessionmaker[Session]


@pytest.fixture(params=["sqlite", "postgresql"])
def dsn(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/reports.db"
    found: str = request.getfixturevalue("postgres_dsn")
    return found


@pytest.fixture
def sessions(dsn: str) -> Iterator[Sessions]:
    opened = open_database(dsn, pool_size=10)
    yield opened
    opened.kw["bind"].dispose()


@pytest.fixture(autouse=True)
def fresh_breakers() -> Iterator[None]:
    GLOBAL_CIRCUIT_BREAKER.reset()
    yield
    GLOBAL_CIRCUIT_BREAKER.reset()
