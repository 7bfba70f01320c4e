"""Spans carry the correlation id. In a separate process: OpenTelemetry allows one provider per process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json, sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)

from conquiet.local import PriorityDelayQueue, Worker
from conquiet.reconcile import Metrics, Reconciler, ReconciliationJob, open_database
from conquiet.testing import ManualClock
from tests.integration.reconcile.reports import platform, store

clock = ManualClock()
sessions = open_database(sys.argv[1])
fetcher, _ = platform({"p1": Metrics(1000, 30, 2)}, clock)
queue = PriorityDelayQueue(clock=clock)
queue.enqueue(ReconciliationJob(store(sessions, clock, post_id="p1"), correlation_id="request-7"))
queue.enqueue(ReconciliationJob(404))
queue.shutdown()
with Worker(queue, Reconciler(fetcher, sessions, clock=clock), session_factory=sessions):
    pass
spans = exporter.get_finished_spans()
names = {span.context.span_id: span.name for span in spans}
print(json.dumps([
    [span.name, names.get(span.parent.span_id) if span.parent else None, dict(span.attributes)] for span in spans
]))
"""


@pytest.mark.clause("W-12")
def test_an_attempts_span_has_its_report_and_its_correlation_id(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, f"sqlite:///{tmp_path}/reports.db"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert run.returncode == 0, run.stderr
    spans = [span for span in json.loads(run.stdout) if span[0] == "reconcile"]
    parents = {parent for _, parent, _ in spans}
    assert [attributes for _, _, attributes in spans] == [
        {
            "conquiet.report_id": 1,
            "conquiet.report_attempt": 1,
            "conquiet.correlation_id": "request-7",
            "conquiet.status": "MATCHED",
        },
        {"conquiet.report_id": 404, "conquiet.report_attempt": 1},
    ]
    assert len(parents) == 1
    assert None not in parents  # it is part of the worker's own span
    assert "1000" not in run.stdout  # no claims, no figures of the platform
