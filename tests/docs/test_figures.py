"""Every figure of a benchmark in the documentation is the one in docs/figures.toml, which the benchmarks write."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench import figures, pages
from bench.__main__ import load, rooms
from bench.figures import Run

PAGES = [page for page in pages.pages() if page.name != "reference.md"]
# A ratio, or a rate. What they say otherwise: lease times, arithmetic, faults per second.
UNMARKED = re.compile(
    r"\d ×|\d(?:\.\d+)? times (?:as|its|the|DuckDB)|\d (?!byte)(?:\w+ ){0,2}(?:a|per) second\b"
)
NOT_FROM_A_BENCHMARK = {
    "docs/reliability.md": "0.98, 1.02 and 6 × the lease",  # what was done
    "docs/scaling.md": "11,600 reports a second on average (a billion in 86,400 seconds)",  # arithmetic
    "docs/reconciliation-pipeline.md": "3 a second, 16 in all",  # a sample of the output
    "docs/decisions/0005-bulk-enqueue.md": "rows per second in batches",  # why it was decided, then
    "docs/conformance.md": "a handler of 10 × TTL",  # a clause
    "bench/README.md": "1.2 means that these take 1.2 times as long",  # how to read a key
}


def name_of(page: Path) -> str:
    return str(page.relative_to(figures.ROOT))


def test_the_pages_show_what_the_file_has() -> None:
    assert [name_of(page) for page in pages.differing(write=False)] == []


def test_a_figure_has_one_run_and_a_benchmark_that_measures_it() -> None:
    known = figures.values(figures.read())
    assert known.keys() <= {key for room in rooms() for key in load(room).keys()}  # noqa: SIM118  (not a dict)


def test_pages_name_only_keys_that_a_benchmark_has() -> None:
    keys = {key for room in rooms() for key in load(room).keys()}  # noqa: SIM118  (not a dict)
    named = {
        (name_of(page), found["key"])
        for page in PAGES
        for marked in pages.MARKED.finditer(page.read_text(encoding="utf-8"))
        if (found := pages.FORMULA.fullmatch(marked["formula"]))
    }
    assert [(page, key) for page, key in sorted(named) if key not in keys] == []
    assert len(named) > 20


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_has_no_ratio_or_rate_of_its_own(page: Path) -> None:
    text = pages.MARKED.sub("", page.read_text(encoding="utf-8"))
    allowed = NOT_FROM_A_BENCHMARK.get(name_of(page), "")
    assert allowed in text, "no longer there: remove it from the list"
    lines = text.replace(allowed, "").splitlines() if allowed else text.splitlines()
    if page == pages.KEYS:
        lines = [line for line in lines if not pages.ROW.match(line)]
    assert [line for line in lines if UNMARKED.search(line)] == []


@pytest.mark.parametrize(
    ("formula", "text"),
    [
        ("a.b_vs_raw", "0.39 ×"),
        ("1 / a.b_vs_raw", "2.6 ×"),
        ("100 * a.b_vs_raw", "39 ×"),
        ("a.rate_per_second", "265,000"),
        ("a.rate_per_second / 10", "26,500"),
        ("a.share", "0.0016"),
        ("a.one_factor", "1.0 ×"),
        ("a.nobody_measured", "not measured"),
    ],
)
def test_how_a_figure_is_shown(formula: str, text: str) -> None:
    known = {"a.b_vs_raw": 0.389, "a.rate_per_second": 264_960.0, "a.share": 0.0016, "a.one_factor": 0.999}
    page = f"x <!-- figure {formula} -->old<!-- end --> y"
    assert pages.filled(page, known) == f"x <!-- figure {formula} -->{text}<!-- end --> y"
    assert pages.filled(pages.filled(page, known), known) == pages.filled(page, known)


def test_a_formula_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="not a figure: 'nonsense'"):
        pages.filled("<!-- figure nonsense -->1<!-- end -->", {})


def test_a_new_run_replaces_what_it_measured_and_keeps_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "figures.toml"
    path.write_text(
        figures.text_of(
            [
                Run("2026-01-02", "aaaaaaa", "2 cores", 7, {"a.x": 1.0, "a.y": 2.0}),
                Run("2026-01-01", "bbbbbbb", "2 cores", 7, {"b.x": 3.0}),
            ]
        )
    )
    figures.record({"b.x": 4.00004}, 7, path)
    figures.record({"a.x": 5.0}, 7, path)  # another room of the same run
    newest, older = figures.read(path)
    assert (newest.figures, newest.rounds) == ({"a.x": 5.0, "b.x": 4.0}, 7)
    assert older == Run("2026-01-02", "aaaaaaa", "2 cores", 7, {"a.y": 2.0})
    assert figures.values(figures.read(path)) == {"a.x": 5.0, "a.y": 2.0, "b.x": 4.0}


@pytest.mark.parametrize("options", [("--scale", "0.5"), ("--repetitions", "1")])
def test_a_part_of_a_run_is_not_written(options: tuple[str, str]) -> None:
    command = [sys.executable, "-m", "bench", "flow", "--write", *options]
    done = subprocess.run(command, cwd=figures.ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "--write needs a full run" in done.stderr
