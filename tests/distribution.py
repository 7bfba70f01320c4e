"""Which tests run in one process: a pytest plugin for pytest-xdist.

A test runs wherever there is room, with two exceptions. Tests of files that use the fixture `spark` share one process and so
one session, because starting a session takes longer than most tests. Tests of a file with a module-scoped fixture, or
with the marker `one_process`, run together, because sharing is what they are written for.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "one_process: the tests of this file run in one process")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.partition("::")[0]
            return _shared_by(config.rootpath / path, path) or nodeid

    return Scheduling(config, log)


@cache
def _shared_by(file: Path, path: str) -> str | None:
    text = file.read_text(encoding="utf-8")
    if "spark: SparkSession" in text:
        return "spark"
    return path if 'scope="module"' in text or "pytest.mark.one_process" in text else None
