"""`make run` as its user meets it: a process, a table, a count that must be right."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from conquiet.cli import main_job
from conquiet.cli.sample import Sample
from conquiet.queue import BacklogStats


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "conquiet.cli.main_job", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=110)


def test_what_was_generated_is_found_and_a_second_run_starts_clean(tmp_path: Path) -> None:
    (tmp_path / "out" / "verdicts").mkdir(parents=True)
    (tmp_path / "out" / "verdicts" / "left.parquet").write_bytes(b"from another run")
    done = run("--reports", "1500", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    sample = Sample(1500)
    assert sum(1 for _ in sample) == 1500
    for name, count in sample.truth.items():
        (line,) = [line for line in done.stdout.splitlines() if name in line]
        assert [part.strip() for part in line.split("│")][2:4] == [f"{count:,}", f"{count:,}"]
    assert "right: 1,500 reports enqueued, 1,500 verdicts in out/verdicts, 0 pending" in done.stdout
    assert "classification batch 0: 1,500 rows" in done.stderr  # progress, while it runs


def test_a_wrong_number_is_refused_in_one_line(tmp_path: Path) -> None:
    done = run("--reports", "0", folder=tmp_path)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        2,
        "make run: error: argument --reports: at least 1",
    )


@pytest.mark.parametrize(
    ("found", "pending", "code"),
    [
        ({"matched": 2, "overclaimed": 1}, 0, 0),
        ({"matched": 3}, 0, 1),
        ({"matched": 2, "overclaimed": 1}, 1, 1),
    ],
)
def test_a_count_that_differs_fails_the_run(
    found: dict[str, int], pending: int, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    backlog = BacklogStats(3, 0, pending, {}, None, None)
    truth = Counter({"matched": 2, "overclaimed": 1})
    assert main_job._report(truth, found, backlog, Path("out"), 1.0) == code
    assert ("WRONG" in capsys.readouterr().out) is bool(code)


def test_the_same_seed_gives_the_same_sample() -> None:
    assert list(Sample(50)) == list(Sample(50))
    assert list(Sample(50)) != list(Sample(50, seed=8))
