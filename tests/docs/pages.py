"""The pages of the documentation and the blocks of code in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "bench" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
FENCE = re.compile(r"^```(?P<language>\w*)(?P<info>[^\n]*)\n(?P<text>.*?)^```\s*$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"`(?P<name>\w+\.py)`:\n\n\Z")  # "Save this as `tasks.py`:", before a block


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    info: str
    text: str
    file: str | None  # the name under which the page says to save it


def blocks(page: Path, *languages: str) -> list[Block]:
    """The blocks of these languages, in order."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in FENCE.finditer(text):
        if match["language"] in languages:
            line = text.count("\n", 0, match.start("text"))
            named = NAMED.search(text, 0, match.start())
            block = Block(
                page,
                line,
                match["language"],
                match["info"].strip(),
                match["text"],
                named["name"] if named else None,
            )
            found.append(block)
    return found


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def normalised(text: str) -> str:
    """Text without what differs from run to run: times, rates, numbers of tasks, ids."""
    text = re.sub(r"\b[0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}\b", "ID", text)
    text = re.sub(r"\b\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|\+00:00)?", "TIME", text)
    text = re.sub(r"\b\d+ of \d+ tasks", "TASKS", text)
    return re.sub(r"\b[\d,.]+ (s|ms|a second)\b", r"N \1", text)
