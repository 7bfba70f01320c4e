"""Reconciliation: what affiliates claim, against what platforms say.

The rules and the verdict need nothing but the standard library: Spark executors use them too. The rest is loaded when
it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from conquiet.errors import (
    AttemptOrderError,
    PlatformAuthError,
    PlatformError,
    PlatformRateLimitError,
    ReconcileConfigError,
    ReconcileError,
    ReportNotFoundError,
    ReportRefusedError,
)
from conquiet.extras import needed_by
from conquiet.reconcile.job import JOB_ID, JobQueue, ReconciliationJob
from conquiet.reconcile.rules import (
    DEFAULT_RULES,
    LEVELS,
    MAX_CLAIM,
    METRIC_NAMES,
    TRUST_EVENTS,
    AlertRule,
    IntakeRules,
    Level,
    RetryRule,
    RiskRules,
    Rules,
    Status,
    TrustEvent,
    TrustRules,
)
from conquiet.reconcile.verdict import (
    Metrics,
    Verdict,
    alert_for,
    classify,
    elapsed_hours,
    retry_at,
    risk_priority,
)

if TYPE_CHECKING:
    from conquiet.reconcile.alerts import alerts_of
    from conquiet.reconcile.attempt import run_reconciliation
    from conquiet.reconcile.database import open_database
    from conquiet.reconcile.intake.http import create_app
    from conquiet.reconcile.intake.submission import MAX_NAME
    from conquiet.reconcile.models import AffiliateReport, Alert, ReportAttempt, TrustEntry, table_of
    from conquiet.reconcile.platforms.adapter import AdapterRegistry, Observation, PlatformAdapter
    from conquiet.reconcile.platforms.fetcher import ADAPTERS, FetchError, FetchOutcome, PlatformFetcher
    from conquiet.reconcile.platforms.http import HttpAdapter
    from conquiet.reconcile.platforms.simulated import SimulatedAdapter
    from conquiet.reconcile.queues import JobStoreQueue, StreamQueue
    from conquiet.reconcile.reconciler import Reconciler
    from conquiet.reconcile.result import ReconciliationResult
    from conquiet.reconcile.scheduler import RetryScheduler, resume
    from conquiet.reconcile.service import ReconciliationService
    from conquiet.reconcile.task import PlatformUnavailable, ReconciliationTask
    from conquiet.reconcile.trust import trust_score, trust_scores

__all__ = [
    "ADAPTERS",
    "DEFAULT_RULES",
    "JOB_ID",
    "LEVELS",
    "MAX_CLAIM",
    "MAX_NAME",
    "METRIC_NAMES",
    "TRUST_EVENTS",
    "AdapterRegistry",
    "AffiliateReport",
    "Alert",
    "AlertRule",
    "AttemptOrderError",
    "FetchError",
    "FetchOutcome",
    "HttpAdapter",
    "IntakeRules",
    "JobQueue",
    "JobStoreQueue",
    "Level",
    "Metrics",
    "Observation",
    "PlatformAdapter",
    "PlatformAuthError",
    "PlatformError",
    "PlatformFetcher",
    "PlatformRateLimitError",
    "PlatformUnavailable",
    "ReconcileConfigError",
    "ReconcileError",
    "Reconciler",
    "ReconciliationJob",
    "ReconciliationResult",
    "ReconciliationService",
    "ReconciliationTask",
    "ReportAttempt",
    "ReportNotFoundError",
    "ReportRefusedError",
    "RetryRule",
    "RetryScheduler",
    "RiskRules",
    "Rules",
    "SimulatedAdapter",
    "Status",
    "StreamQueue",
    "TrustEntry",
    "TrustEvent",
    "TrustRules",
    "Verdict",
    "alert_for",
    "alerts_of",
    "classify",
    "create_app",
    "elapsed_hours",
    "open_database",
    "resume",
    "retry_at",
    "risk_priority",
    "run_reconciliation",
    "table_of",
    "trust_score",
    "trust_scores",
]

_LATER = {
    "alerts": ("alerts_of",),
    "attempt": ("run_reconciliation",),
    "database": ("open_database",),
    "platforms.fetcher": ("ADAPTERS", "FetchError", "FetchOutcome", "PlatformFetcher"),
    "platforms.http": ("HttpAdapter",),
    "intake.http": ("create_app",),
    "platforms.adapter": ("AdapterRegistry", "Observation", "PlatformAdapter"),
    "models": ("AffiliateReport", "Alert", "ReportAttempt", "TrustEntry", "table_of"),
    "intake.submission": ("MAX_NAME",),
    "queues": ("JobStoreQueue", "StreamQueue"),
    "reconciler": ("Reconciler",),
    "result": ("ReconciliationResult",),
    "scheduler": ("RetryScheduler", "resume"),
    "service": ("ReconciliationService",),
    "platforms.simulated": ("SimulatedAdapter",),
    "task": ("PlatformUnavailable", "ReconciliationTask"),
    "trust": ("trust_score", "trust_scores"),
}
_MODULES = {name: module for module, names in _LATER.items() for name in names}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)  # a fixed table: what is asked for chooses from it, and imports nothing else
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with needed_by(f"conquiet.reconcile.{name}"):
        value = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value
