"""`make run` as a user runs it: a process, a table, figures that must be right."""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from conquiet.demo.findings import Findings, compared
from conquiet.demo.main_job import _say_whether_right
from conquiet.demo.retries import SAMPLE_RULES
from conquiet.demo.sample import Sample, Truth
from conquiet.reconcile import Metrics, classify
from conquiet.reconcile.rules import METRIC_NAMES

COMMAND = [sys.executable, "-m", "conquiet.demo.main_job"]
NOW = datetime(2026, 1, 31, tzinfo=UTC)


def truth_of(reports: int, seed: int = 7) -> Truth:
    sample = Sample(reports, seed)
    assert sum(len(chunk.entries) for chunk in sample) == sample.truth.entries
    return sample.truth


def row(output: str, name: str, nth: int = 0) -> list[str]:
    lines = [line for line in output.splitlines() if f"│ {name} " in line]
    return [part.strip() for part in lines[nth].split("│")][3:5]


@pytest.mark.timeout(400)
def test_the_figures_are_those_of_the_generator_and_what_another_run_left_is_gone(tmp_path: Path) -> None:
    (tmp_path / "out" / "verdicts").mkdir(parents=True)
    (tmp_path / "out" / "verdicts" / "left.parquet").write_bytes(b"from another run")
    done = subprocess.run(
        [*COMMAND, "--reports", "1200"], cwd=tmp_path, capture_output=True, text=True, timeout=350
    )
    assert done.returncode == 0, done.stdout + done.stderr
    truth = truth_of(1200)
    for nth, verdicts in enumerate((truth.first, truth.final)):
        for name, count in verdicts.items():
            assert row(done.stdout, name, nth) == [f"{count:,}"] * 2
    for (kind, severity), count in truth.alerts.items():
        assert row(done.stdout, f"{kind}, {severity}") == [f"{count:,}"] * 2
    assert row(done.stdout, "judged") == ["1,200", "1,200"]
    assert row(done.stdout, "retried as jobs") == [f"{truth.retried}"] * 2
    assert row(done.stdout, "entries not acknowledged") == ["0", "0"]
    assert "right: all" in done.stdout
    page = (tmp_path / "out" / "report.html").read_text()
    assert "The sample of make run" in page
    assert "1,200" in page
    assert f"batch 0: {truth.entries:,} rows" in done.stderr  # progress, while it runs


@pytest.mark.timeout(300)
@pytest.mark.parametrize("moment", [("spark", "starts"), ("reconciliation", "started")], ids=" ".join)
def test_ctrl_c_ends_it_and_says_what_happens_next(tmp_path: Path, moment: tuple[str, ...]) -> None:
    """While Spark's JVM starts, and while a query runs."""
    with subprocess.Popen(
        [*COMMAND, "--reports", "5000"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if all(word in line for word in moment):
                os.killpg(process.pid, signal.SIGINT)  # as a terminal does
                break
        rest = process.stdout.read()  # to the end: no process is left that could write to it
    assert process.returncode == 130, rest
    assert "stopped. The servers of this run are removed; the next run starts new ones" in rest
    assert "Traceback" not in rest
    assert "Exception" not in rest  # of Java


def test_a_wrong_number_is_refused_in_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "--reports", "0"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        2,
        "make run: error: argument --reports: must be at least 1",
    )


def right_figures(truth: Truth) -> Findings:
    return Findings(
        copy.copy(truth.first),
        copy.copy(truth.final),
        copy.copy(truth.alerts),
        copy.copy(truth.quarantine),
        copy.copy(truth.trust),
        truth.retried,
    )


@pytest.mark.parametrize(
    "broken", ["", "first", "final", "alerts", "quarantine", "trust", "retried", "pending", "unfinished_jobs"]
)
def test_any_figure_that_differs_fails_the_run(broken: str, capsys: pytest.CaptureFixture[str]) -> None:
    truth = truth_of(400)
    found = right_figures(truth)
    if broken in ("retried", "pending", "unfinished_jobs"):
        setattr(found, broken, getattr(found, broken) + 1)
    elif broken:
        counter = getattr(found, broken)
        counter[next(iter(counter))] += 1
    code = _say_whether_right(list(compared(truth, found)), Path("out"), 1.0)
    assert code == bool(broken)
    assert ("WRONG" in capsys.readouterr().out) is bool(broken)


def test_the_same_seed_gives_the_same_sample() -> None:
    assert list(Sample(50, now=NOW)) == list(Sample(50, now=NOW))
    assert list(Sample(50, now=NOW)) != list(Sample(50, seed=8, now=NOW))


def test_the_sample_has_every_outcome_and_its_reports_are_what_it_says() -> None:
    """The truth is drawn, not computed: this test checks it against the rules."""
    sample = Sample(4_000, now=NOW)
    reports: dict[int, dict[str, Any]] = {}
    observed: dict[str, dict[str, Any]] = {}
    for chunk in sample:
        for entry in chunk.entries:
            if isinstance(entry, dict) and entry["report_id"] <= 4_000:
                assert reports.setdefault(entry["report_id"], entry) == entry  # a duplicate is identical
        observed |= {metrics["post_id"]: metrics for metrics in chunk.metrics}
    first: dict[str, int] = {}
    final: dict[str, int] = {}
    for report in reports.values():
        claimed = Metrics(*(report[f"claimed_{name}"] for name in METRIC_NAMES))
        submitted = datetime.fromisoformat(report["submitted_at"])
        metrics = observed.get(report["post_id"])
        shown = Metrics(*(metrics[name] if metrics else None for name in METRIC_NAMES))
        hours = (metrics["observed_at"] - submitted).total_seconds() / 3600 if metrics else 0.0
        verdict = classify(claimed, shown, hours, SAMPLE_RULES)
        first[verdict.status.value] = first.get(verdict.status.value, 0) + 1
        if verdict.confidence < 1:
            later = sample.posts[report["platform"]].get(report["post_id"], Metrics(None, None, None))
            verdict = classify(claimed, later, (NOW - submitted).total_seconds() / 3600, SAMPLE_RULES)
        final[verdict.status.value] = final.get(verdict.status.value, 0) + 1
    assert (first, final) == (dict(sample.truth.first), dict(sample.truth.final))
    assert len(first) == len(final) == 7
    assert sample.truth.duplicates > 0
    assert len(sample.truth.quarantine) == 7
