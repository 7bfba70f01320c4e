"""Puts the figures of docs/figures.toml into the pages: `python -m bench.pages`, or `make figures`. `--check` only looks.

A figure stands between two comments, `<!-- figure jobs.sqlite_batched_vs_raw -->0.73 ×<!-- end -->`. The first one names a key, and
may divide or multiply it by a number: `1 / reconcile.batch_vs_duckdb`. The keys of bench/README.md need no comments: their
figures stand in the second column of their rows. What nobody has measured is shown as that.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from bench.figures import ROOT, Run, read, values

MARKED = re.compile(r"<!-- figure (?P<formula>[^>]*?) -->(?P<shown>.*?)<!-- end -->", re.DOTALL)
FORMULA = re.compile(
    r"(?:(?P<before>[\d.]+) (?P<first>[*/]) )?(?P<key>[a-z_]+\.\w+)(?: (?P<then>[*/]) (?P<after>[\d.]+))?"
)
ROW = re.compile(r"^(?P<head>\| `(?P<key>[a-z_]+\.\w+)` \|)(?P<shown>[^|\n]*)\|", re.MULTILINE)
RUNS = re.compile(r"(?<=<!-- runs -->\n)(?P<shown>.*?)(?=<!-- end -->)", re.DOTALL)
KEYS = ROOT / "bench" / "README.md"
NOT_MEASURED = "not measured"


def pages() -> list[Path]:
    return [ROOT / "README.md", KEYS, *sorted((ROOT / "docs").rglob("*.md"))]


def filled(text: str, known: Mapping[str, float]) -> str:
    """Return the page with the figures that it names."""
    return MARKED.sub(
        lambda found: f"<!-- figure {found['formula']} -->{shown(found['formula'], known)}<!-- end -->", text
    )


def filled_keys(text: str, runs: Iterable[Run]) -> str:
    """Return bench/README.md with the figure of every key and the list of runs."""
    runs = list(runs)
    known = values(runs)
    text = ROW.sub(
        lambda row: f"{row['head']} {shown(row['key'], known) if row['key'] in known else '–'} |", text
    )
    lines = "".join(
        f"- {run.measured}, {run.commit}, {run.rounds} rounds, {run.machine}: "
        f"{', '.join(f'{name} ({number})' for name, number in _rooms(run).items())}\n"
        for run in runs
    )
    return RUNS.sub(lambda found: lines, text)


def shown(formula: str, known: Mapping[str, float]) -> str:
    """Return the figure as people read it: two digits, three of large ones, and × for a ratio."""
    parts = FORMULA.fullmatch(formula)
    if parts is None:
        raise ValueError(f"not a figure: {formula!r}; write a key, or a number, * or /, and a key")
    if parts["key"] not in known:
        return NOT_MEASURED
    value = known[parts["key"]]
    if parts["first"]:
        value = float(parts["before"]) * value if parts["first"] == "*" else float(parts["before"]) / value
    if parts["then"]:
        value = value * float(parts["after"]) if parts["then"] == "*" else value / float(parts["after"])
    return rounded(value) + (" ×" if "_vs_" in parts["key"] or parts["key"].endswith("_factor") else "")


def rounded(value: float) -> str:
    digits = 3 if value >= 1000 else 2
    number = float(f"{value:.{digits}g}")
    if number >= 10:
        return f"{number:,.0f}"
    return f"{number:.{digits}g}" if number < 0.1 else f"{number:.2f}" if number < 1 else f"{number:.1f}"


def _rooms(run: Run) -> dict[str, int]:
    names = [key.split(".")[0] for key in run.figures]
    return {name: names.count(name) for name in dict.fromkeys(names)}


def differing(write: bool) -> list[Path]:
    """Return the pages that show something else than the file; with `write` they are mended."""
    runs = read()
    known, found = values(runs), []
    for page in pages():
        text = page.read_text(encoding="utf-8")
        right = filled(text, known)
        if page == KEYS:
            right = filled_keys(right, runs)
        if right != text:
            found.append(page)
            if write:
                page.write_text(right, encoding="utf-8")
    return found


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.pages", description="Put the figures into the pages."
    )
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if a page differs")
    options = parser.parse_args(argv)
    found = [str(page.relative_to(ROOT)) for page in differing(write=not options.check)]
    for name in found:
        print(f"{name}: {'differs from docs/figures.toml; run make figures' if options.check else 'written'}")
    return 1 if found and options.check else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
