"""Loads the named statements of a back end's `statements.sql` and its numbered migrations."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import NamedTuple

__all__ = ["Migration", "load", "migrations"]


def load(name: str, **parts: str) -> dict[str, str]:
    """Return the statements of `<name>/statements.sql`; each follows a line `-- name: <statement>`.

    `{part}` in a statement is replaced by the keyword argument or the statement of that name.
    """
    text = (files("conquiet.jobs.backends") / name / "statements.sql").read_text()
    statements: dict[str, str] = {}
    for block in re.split(r"^-- name: ", text, flags=re.MULTILINE)[1:]:
        title, _, body = block.partition("\n")
        lines = [line for line in body.splitlines() if not line.startswith("--")]
        statement = "\n".join(lines).strip().removesuffix(";")
        statements[title.strip()] = statement
    parts = statements | parts

    def filled(text: str) -> str:
        return re.sub(
            r"\{(\w+)\}", lambda part: filled(parts[part[1]]) if part[1] in parts else part[0], text
        )

    return {title: filled(statement) for title, statement in statements.items()}


class Migration(NamedTuple):
    """One step of the schema, up and down.

    Afterwards, programs work with it whose own version is `oldest` or newer. A step that only adds says so in its first
    line, `-- works with: 2`; after any other step only programs of its own version do.
    """

    version: int
    name: str
    up: str
    down: str
    oldest: int


def migrations(name: str) -> list[Migration]:
    folder = files("conquiet.jobs.backends") / name / "migrations"
    steps = []
    for path in sorted(folder.iterdir(), key=lambda path: path.name):
        if path.name.endswith(".up.sql"):
            stem = path.name.removesuffix(".up.sql")
            down = (folder / f"{stem}.down.sql").read_text()
            up, version = path.read_text(), int(stem[:4])
            said = re.match(r"-- works with: (\d+)\n", up)
            steps.append(Migration(version, stem, up, down, int(said[1]) if said else version))
    return steps
