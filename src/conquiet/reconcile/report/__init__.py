"""Analytics over the outputs of reconciliation, and the page that shows them."""

from typing import TYPE_CHECKING

from conquiet.lazy import lazy_names

if TYPE_CHECKING:
    from conquiet.reconcile.report.collection import collect_figures
    from conquiet.reconcile.report.figures import ReportFigures
    from conquiet.reconcile.report.job_history import attempt_outcomes, job_attempts, job_times
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
    "collection": ("collect_figures",),
    "figures": ("ReportFigures",),
    "job_history": ("attempt_outcomes", "job_attempts", "job_times"),
    "page": ("write_report",),
    "tables": (
        "mean_trust_by_day",
        "outcome_rates",
        "quarantine_reasons",
        "read_outputs",
        "trust_by_day",
    ),
}
# The page needs no Spark; the tables do.
__getattr__ = lazy_names(__name__, _MODULES)
