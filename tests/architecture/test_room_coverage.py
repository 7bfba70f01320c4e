"""Line coverage by room, from what `coverage run` has written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import coverage

from tests.room_coverage import by_room


def test_each_folder_is_a_room_and_the_files_at_the_root_are_one(tmp_path: Path) -> None:
    package = tmp_path / "package"
    (package / "room" / "inner").mkdir(parents=True)
    for name in ("", "room", "room/inner"):
        (package / name / "__init__.py").touch()
    (package / "clock.py").write_text("a = 1\nif not a:\n    b = 2\n    c = 3\n")
    (package / "room" / "door.py").write_text("import package.clock\n")
    (package / "room" / "inner" / "unused.py").write_text("d = 4\n")
    settings = tmp_path / "settings"
    settings.write_text("[run]\nsource_pkgs = package\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    command = [sys.executable, "-m", "coverage", "run", f"--rcfile={settings}", "-m", "package.room.door"]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=60)
    measured = coverage.Coverage(data_file=str(tmp_path / ".coverage"), config_file=str(settings))
    measured.load()
    assert by_room(measured, package, package.rglob("*.py")) == {
        "room": (2, 1),
        "root files": (4, 2),
        "all": (6, 3),
    }
