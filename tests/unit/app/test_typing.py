"""What a type checker says about a user's tasks."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

USAGE = Path(__file__).with_name("typed_usage.py")


def test_mypy_accepts_what_is_right_and_refuses_what_is_wrong(tmp_path: Path) -> None:
    expected = {
        (number, code)
        for number, line in enumerate(USAGE.read_text().splitlines(), 1)
        if (match := re.search(r"# error: ([a-z, -]+)$", line))
        for code in match[1].split(", ")
    }
    assert len(expected) > 10
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        f"--cache-dir={tmp_path}",
        "--config-file=",
        str(USAGE),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    found = re.findall(r"^\S+:(\d+): error: .*\[([\w-]+)\]$", done.stdout, re.MULTILINE)
    assert {(int(number), code) for number, code in found} == expected, done.stdout + done.stderr
