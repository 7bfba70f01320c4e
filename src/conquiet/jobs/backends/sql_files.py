"""Loads the named statements of a back end's `statements.sql` and its numbered migrations."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import NamedTuple

__all__ = ["Migration", "load", "migrations"]


def load(name: str, **parts: str) -> dict[str, str]:
    """Return the statements of `<name>/statements.sql`; each follows a line `-- name: <statement>`.

    `{part}` in a statement is replaced by the keyword argument of that name.
    """
    text = (files("conquiet.jobs.backends") / name / "statements.sql").read_text()
    statements: dict[str, str] = {}
    for block in re.split(r"^-- name: ", text, flags=re.MULTILINE)[1:]:
        title, _, body = block.partition("\n")
        lines = [line for line in body.splitlines() if not line.startswith("--")]
        statement = "\n".join(lines).strip().removesuffix(";")
        for part, value in parts.items():
            statement = statement.replace(f"{{{part}}}", value)
        statements[title.strip()] = statement
    return statements


class Migration(NamedTuple):
    """One step of the schema, up and down."""

    version: int
    name: str
    up: str
    down: str


def migrations(name: str) -> list[Migration]:
    folder = files("conquiet.jobs.backends") / name / "migrations"
    steps = []
    for path in sorted(folder.iterdir(), key=lambda path: path.name):
        if path.name.endswith(".up.sql"):
            stem = path.name.removesuffix(".up.sql")
            down = (folder / f"{stem}.down.sql").read_text()
            steps.append(Migration(int(stem[:4]), stem, path.read_text(), down))
    return steps
