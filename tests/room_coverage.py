"""Line coverage by room, for `make conformance`: a pytest plugin that reports what `coverage run` has measured.

`[tool.coverage]` in pyproject.toml has every Python process that the suite starts measured, too. Without `coverage run`,
as in `make test`, nothing happens here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import coverage
import pytest

RESULTS = "build/coverage.json"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    measuring = coverage.Coverage.current()
    if measuring is None:
        return
    measuring.stop()
    measuring.save()
    root = config.rootpath
    package = root / "src" / "conquiet"
    everything = coverage.Coverage(config_file=str(root / "pyproject.toml"))
    everything.combine(keep=True)
    rooms = by_room(everything, package, sorted(package.rglob("*.py")))
    (root / RESULTS).write_text(json.dumps(rooms, indent=1) + "\n", encoding="utf-8")
    terminalreporter.section("line coverage by room")
    for room, (statements, missed) in rooms.items():
        terminalreporter.line(f"{room:12} {share(statements, missed):6.1%} of {statements} lines")
    terminalreporter.line(f"written: {RESULTS}")


def by_room(measured: coverage.Coverage, package: Path, files: Iterable[Path]) -> dict[str, tuple[int, int]]:
    """Room to (statements, statements that never ran); the modules at the root are one room."""
    rooms: dict[str, tuple[int, int]] = {}
    for file in files:
        folder, *inner = file.relative_to(package).parts
        _, statements, _, missing, _ = measured.analysis2(str(file))
        for room in (folder if inner else "root files", "all"):
            total, missed = rooms.get(room, (0, 0))
            rooms[room] = (total + len(statements), missed + len(missing))
    return {room: rooms[room] for room in sorted(rooms, key=lambda room: (room == "all", room))}


def share(statements: int, missed: int) -> float:
    return 1 - missed / statements if statements else 1.0
