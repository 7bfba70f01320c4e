"""docs/figures.toml: the one source of the figures in the documentation.

`python -m bench --write` adds a run: when it was, of which commit, on which machine, and what it measured. A key is in one
run only, the newest that measured it; a run that has none left is dropped.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "docs" / "figures.toml"
HEADER = """\
# The figures of the documentation. Written by `make bench ARGS=--write`; `make figures` puts them into the pages.
# Do not edit: a figure that was not measured does not stand here.
"""


@dataclass(frozen=True)
class Run:
    measured: str  # the day
    commit: str
    machine: str
    rounds: int
    figures: Mapping[str, float]


def read(path: Path = FIGURES) -> list[Run]:
    """Return the runs, newest first."""
    return [Run(**run) for run in tomllib.loads(path.read_text(encoding="utf-8"))["run"]]


def values(runs: Iterable[Run]) -> dict[str, float]:
    found: dict[str, float] = {}
    for run in runs:
        if twice := found.keys() & run.figures.keys():
            raise ValueError(f"{FIGURES.name}: more than one run has {', '.join(sorted(twice))}")
        found |= run.figures
    return found


def record(results: Mapping[str, float], rounds: int, path: Path = FIGURES) -> None:
    """Add a run with these results; they replace older ones of the same keys."""
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    new = Run(
        today, current_commit(), this_machine(), rounds, {key: significant(results[key]) for key in results}
    )
    older = []
    for run in read(path) if path.exists() else []:
        kept = {key: value for key, value in run.figures.items() if key not in results}
        if replace(run, figures={}) == replace(new, figures={}):  # another room of the same run
            new = replace(new, figures={**kept, **new.figures})
        elif kept:
            older.append(replace(run, figures=kept))
    path.write_text(text_of([new, *older]), encoding="utf-8")


def text_of(runs: Iterable[Run]) -> str:
    parts = [HEADER]
    for run in runs:
        lines = [
            f"{name} = {json.dumps(getattr(run, name))}"
            for name in ("measured", "commit", "machine", "rounds")
        ]
        lines += ["[run.figures]", *(f'"{key}" = {value!r}' for key, value in sorted(run.figures.items()))]
        parts.append("\n".join(["[[run]]", *lines, ""]))
    return "\n".join(parts)


def significant(value: float) -> float:
    """Four digits: more than a run can tell, and less noise in the file."""
    return float(f"{value:.4g}")


def current_commit() -> str:
    def git(*words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", "src", "bench")
    return git("rev-parse", "--short=7", "HEAD") + (" with changes" if changed else "")


def this_machine() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    kernel = ".".join(platform.release().split(".")[:2])
    python = ".".join(platform.python_version_tuple()[:2])
    return f"{os.cpu_count()} cores, {memory:.0f} GB, {platform.system()} {kernel}, Python {python}"
