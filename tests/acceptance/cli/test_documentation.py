"""The settings of the command are all in docs/cli.md. (tests/docs runs the commands that it shows.)"""

from __future__ import annotations

from pathlib import Path

from conquiet.cli.settings import SETTINGS

PAGE = (Path(__file__).parents[3] / "docs" / "cli.md").read_text(encoding="utf-8")


def test_the_settings_are_all_there() -> None:
    for setting in SETTINGS.values():
        row = next(line for line in PAGE.splitlines() if f"`{setting.key} = " in line)
        assert setting.flag in row
        assert all(f"`{variable}`" in row for variable in setting.variables)
