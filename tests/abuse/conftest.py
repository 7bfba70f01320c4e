"""Fixtures: a folder for each test to run in, and the proof that nothing was executed there or on a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.abuse.corpus import CANARY


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder. At the end it is searched for anything that a hostile input would have left there."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    assert list(tmp_path.rglob(f"*{CANARY}*")) == []


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def job_dsn(request: pytest.FixtureRequest, folder: Path) -> str:
    """A job store of every kind."""
    if request.param == "memory":
        return "memory://"
    if request.param == "sqlite":
        return f"sqlite:///{folder}/jobs.db?synchronous=NORMAL"
    dsn: str = request.getfixturevalue("postgres_dsn")
    return dsn


@pytest.fixture(params=["sqlite", "postgresql"])
def report_dsn(request: pytest.FixtureRequest, folder: Path) -> str:
    """A database for reports, of every kind."""
    if request.param == "sqlite":
        return f"sqlite:///{folder}/reports.db"
    dsn: str = request.getfixturevalue("postgres_dsn")
    return dsn
