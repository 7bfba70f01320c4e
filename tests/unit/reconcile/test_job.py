"""What travels through queues, and what importing the room imports."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import pytest

import conquiet.reconcile
from conquiet import payload
from conquiet.errors import PayloadError
from conquiet.reconcile import ReconciliationJob

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.clause("W-12")
def test_a_job_has_the_documented_fields() -> None:
    names = [field.name for field in dataclasses.fields(ReconciliationJob)]
    assert names[:4] == ["affiliate_report_id", "priority", "scheduled_at", "correlation_id"]
    job = ReconciliationJob(101, "high", NOON, "request-7")
    assert (job.affiliate_report_id, job.priority, job.scheduled_at, job.correlation_id) == (
        101, "high", NOON, "request-7",
    )  # fmt: skip
    assert ReconciliationJob(101).attempt == 1


@pytest.mark.clause("W-12")
@pytest.mark.parametrize(
    "job", [ReconciliationJob(1), ReconciliationJob(2**40, "high", NOON, "request-7", 4)]
)
def test_a_job_survives_as_json(job: ReconciliationJob) -> None:
    assert ReconciliationJob.from_payload(payload.decode(payload.encode(job.to_payload()))) == job


@pytest.mark.parametrize(
    "bad", [{}, {"affiliate_report_id": "1"}, {"affiliate_report_id": 1, "attempt": 0},
            {"affiliate_report_id": 1, "scheduled_at": "soon"}, {"affiliate_report_id": 1, "scheduled_at": 5}],
)  # fmt: skip
def test_what_is_no_job_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(PayloadError):
        ReconciliationJob.from_payload(bad)


def test_the_public_names_are_there_and_listed_once() -> None:
    assert [name for name in conquiet.reconcile.__all__ if not hasattr(conquiet.reconcile, name)] == []
    assert not hasattr(conquiet.reconcile, "nonsense")


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


def test_the_rules_alone_bring_no_database_and_no_web() -> None:
    """They run on Spark's executors, where neither needs to be installed."""
    result = run("import sys; from conquiet.reconcile import classify, DEFAULT_RULES; print(*sys.modules)")
    assert result.returncode == 0, result.stderr
    assert {"sqlalchemy", "starlette", "uvicorn", "msgspec"} & set(result.stdout.split()) == set()


@pytest.mark.parametrize(
    ("package", "name", "extra"),
    [("sqlalchemy", "run_reconciliation", "reconcile"), ("starlette", "create_app", "web")],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    package: str, name: str, extra: str
) -> None:
    result = run(f"import sys; sys.modules[{package!r}] = None\nfrom conquiet.reconcile import {name}")
    assert result.returncode == 1
    assert f"needs the package {package}" in result.stderr
    assert f'pip install "conquiet[{extra}]"' in result.stderr
