"""The output shown in docs/cli.md is the output of the command."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from conquiet.cli.settings import SETTINGS
from tests.acceptance.cli.command import Shell

PAGE = (Path(__file__).parents[3] / "docs" / "cli.md").read_text(encoding="utf-8")


def test_the_commands_of_the_page_say_what_it_shows(shell: Shell) -> None:
    (block,) = re.findall(r"^```console\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    shown = re.findall(r"^\$ conquiet (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
    assert len(shown) > 3
    results = shell.each(*(command for command, _ in shown))
    for (command, expected), done in zip(shown, results, strict=True):
        assert done.out + done.err == expected, shlex.split(command)


def test_the_settings_are_all_there() -> None:
    for setting in SETTINGS.values():
        row = next(line for line in PAGE.splitlines() if f"`{setting.key} = " in line)
        assert setting.flag in row
        assert all(f"`{variable}`" in row for variable in setting.variables)
