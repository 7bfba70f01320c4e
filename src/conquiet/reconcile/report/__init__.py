"""Analytics over what reconciliation has written, and the page that shows it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from conquiet.extras import needed_by

if TYPE_CHECKING:
    from conquiet.reconcile.report.collection import collect_figures
    from conquiet.reconcile.report.figures import ReportFigures
    from conquiet.reconcile.report.job_times import attempt_outcomes, job_attempts, job_times
    from conquiet.reconcile.report.page import write_report
    from conquiet.reconcile.report.tables import (
        mean_trust_by_day,
        outcome_rates,
        quarantine_reasons,
        read_outputs,
        trust_by_day,
    )

__all__ = [
    "ReportFigures",
    "attempt_outcomes",
    "collect_figures",
    "job_attempts",
    "job_times",
    "mean_trust_by_day",
    "outcome_rates",
    "quarantine_reasons",
    "read_outputs",
    "trust_by_day",
    "write_report",
]

_MODULES = {
    "ReportFigures": "figures",
    "attempt_outcomes": "job_times",
    "collect_figures": "collection",
    "job_attempts": "job_times",
    "job_times": "job_times",
    "mean_trust_by_day": "tables",
    "outcome_rates": "tables",
    "quarantine_reasons": "tables",
    "read_outputs": "tables",
    "trust_by_day": "tables",
    "write_report": "page",
}


def __getattr__(name: str) -> Any:
    """Import on first use: the page needs no Spark, the tables do."""
    if name in _MODULES:
        with needed_by(f"conquiet.reconcile.report.{name}"):
            return getattr(import_module(f"conquiet.reconcile.report.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
