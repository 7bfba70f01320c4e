"""The span around each job, with a real OpenTelemetry SDK."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from conquiet.local import LAST_EXCEPTIONS, PriorityDelayQueue, Worker


@dataclass(frozen=True)
class Job:
    affiliate_report_id: int
    correlation_id: str | None


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    # A process can set its global provider only once; each test needs its own.
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    yield exporter
    provider.shutdown()
    LAST_EXCEPTIONS.clear()


def work(handler: object, *jobs: Job) -> None:
    queue = PriorityDelayQueue()
    for job in jobs:
        queue.enqueue(job, "high")
    queue.shutdown()
    worker = Worker(queue, handler)  # type: ignore[arg-type]
    worker.start()
    assert worker.join(10)


@pytest.mark.clause("W-12")
def test_each_job_has_a_span_with_its_correlation_id(exporter: InMemorySpanExporter) -> None:
    def handler(job: Job) -> None:
        with trace.get_tracer_provider().get_tracer("mine").start_as_current_span("fetch"):
            pass

    work(handler, Job(1, "request-1"), Job(2, None))
    spans: list[ReadableSpan] = list(exporter.get_finished_spans())
    assert [span.name for span in spans] == ["fetch", "conquiet.local.job"] * 2
    first, second = spans[1], spans[3]
    assert dict(first.attributes or {}) == {
        "conquiet.correlation_id": "request-1",
        "conquiet.priority": "high",
        "conquiet.seq": 0,
    }
    assert "conquiet.correlation_id" not in (second.attributes or {})
    # Spans that the handler starts are inside it, and one job's span is not inside another's.
    assert [span.parent and span.parent.span_id for span in spans] == [
        first.context.span_id,
        None,
        second.context.span_id,
        None,
    ]


@pytest.mark.clause("W-12", "W-14")
def test_the_span_of_a_job_that_fails_says_so_without_secrets(exporter: InMemorySpanExporter) -> None:
    def handler(job: Job) -> None:
        raise ConnectionError("cannot reach postgresql://ann:hunter2@db/x " + "!" * 5_000)

    work(handler, Job(1, "request-1"))
    (span,) = exporter.get_finished_spans()
    attributes = dict(span.attributes or {})
    assert attributes["exception.type"] == "ConnectionError"
    message = str(attributes["exception.message"])
    assert message.startswith("cannot reach postgresql://ann:***@db/x")
    assert len(message) == 1_024
    assert span.status.status_code is trace.StatusCode.ERROR
    assert attributes["conquiet.correlation_id"] == "request-1"
