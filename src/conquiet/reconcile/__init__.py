"""Reconciliation of affiliates' claims with platforms' numbers.

The rules and the verdict need only the standard library, because Spark's executors use them too. Everything else is
imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
from conquiet.lazy import lazy_names
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

_MODULES = {
    "alerts": ("alerts_of",),
    "attempt": ("run_reconciliation",),
    "database": ("open_database",),
    "intake.http": ("create_app",),
    "intake.submission": ("MAX_NAME",),
    "models": ("AffiliateReport", "Alert", "ReportAttempt", "TrustEntry", "table_of"),
    "platforms.adapter": ("AdapterRegistry", "Observation", "PlatformAdapter"),
    "platforms.fetcher": ("ADAPTERS", "FetchError", "FetchOutcome", "PlatformFetcher"),
    "platforms.http": ("HttpAdapter",),
    "platforms.simulated": ("SimulatedAdapter",),
    "queues": ("JobStoreQueue", "StreamQueue"),
    "reconciler": ("Reconciler",),
    "result": ("ReconciliationResult",),
    "scheduler": ("RetryScheduler", "resume"),
    "service": ("ReconciliationService",),
    "task": ("PlatformUnavailable", "ReconciliationTask"),
    "trust": ("trust_score", "trust_scores"),
}
__getattr__ = lazy_names(__name__, _MODULES)
