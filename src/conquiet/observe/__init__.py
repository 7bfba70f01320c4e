"""Adapters to Prometheus and OpenTelemetry. Nothing here is needed for correctness."""

from conquiet.observe.engine_metrics import EngineMetrics
from conquiet.observe.failsafe import safely
from conquiet.observe.local_metrics import (
    LATENCY_BOUNDS,
    Latency,
    LocalWorkerMetrics,
    watch_breaker,
    watch_queue,
)
from conquiet.observe.pipeline_metrics import PipelineMetrics
from conquiet.observe.queue_metrics import QueueMetrics
from conquiet.observe.reconcile_metrics import METRICS as RECONCILE_METRICS
from conquiet.observe.scrape import exposition
from conquiet.observe.spans import Spans

__all__ = [
    "LATENCY_BOUNDS",
    "RECONCILE_METRICS",
    "EngineMetrics",
    "Latency",
    "LocalWorkerMetrics",
    "PipelineMetrics",
    "QueueMetrics",
    "Spans",
    "exposition",
    "safely",
    "watch_breaker",
    "watch_queue",
]
