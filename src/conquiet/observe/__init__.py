"""Adapters to Prometheus and OpenTelemetry. Nothing here is needed for correctness."""

from conquiet.observe.engine_metrics import EngineMetrics
from conquiet.observe.failsafe import safely
from conquiet.observe.job_metrics import (
    JobOutages,
    JobSeries,
    JobSteps,
    count_enqueued,
    job_series,
    watch_running,
)
from conquiet.observe.local_metrics import (
    LATENCY_BOUNDS,
    Latency,
    LocalWorkerMetrics,
    watch_breaker,
    watch_queue,
)
from conquiet.observe.logs import SafeLogger
from conquiet.observe.pipeline_metrics import PipelineMetrics
from conquiet.observe.pool_metrics import ConnectionsInUse
from conquiet.observe.processes import DIRECTORY, SummedMetrics, join_sum
from conquiet.observe.queue_metrics import QueueMetrics
from conquiet.observe.reconcile_metrics import METRICS as RECONCILE_METRICS
from conquiet.observe.scrape import Exposition, exposition
from conquiet.observe.shared_metrics import SharedStateMetrics
from conquiet.observe.spans import Spans

__all__ = [
    "DIRECTORY",
    "LATENCY_BOUNDS",
    "RECONCILE_METRICS",
    "ConnectionsInUse",
    "EngineMetrics",
    "Exposition",
    "JobOutages",
    "JobSeries",
    "JobSteps",
    "Latency",
    "LocalWorkerMetrics",
    "PipelineMetrics",
    "QueueMetrics",
    "SafeLogger",
    "SharedStateMetrics",
    "Spans",
    "SummedMetrics",
    "count_enqueued",
    "exposition",
    "job_series",
    "join_sum",
    "safely",
    "watch_breaker",
    "watch_queue",
    "watch_running",
]
