"""Spans as an OpenTelemetry SDK records them, with a provider for one test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class Recorded:
    """Give `provider` to a task as its `tracer_provider`, then read the spans that have ended."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("test")

    def __iter__(self) -> Iterator[ReadableSpan]:
        return iter(sorted(self._exporter.get_finished_spans(), key=lambda span: span.start_time or 0))

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span

    def parent(self, span: ReadableSpan) -> ReadableSpan | None:
        if span.parent is None:
            return None
        (parent,) = [other for other in self if other.context.span_id == span.parent.span_id]
        return parent

    def path(self, span: ReadableSpan) -> list[str]:
        """The names from the root down to `span`."""
        above = self.parent(span)
        return [*(self.path(above) if above else ()), span.name]

    def tree(self) -> list[Any]:
        """The ended spans as nested lists, in the order in which they began."""
        return [self._below(span) for span in self if self.parent(span) is None]

    def _below(self, span: ReadableSpan) -> list[Any]:
        children = [other for other in self if other.parent and other.parent.span_id == span.context.span_id]
        return [span.name, *map(self._below, children)]

    def text(self) -> str:
        """Everything in the spans as text."""
        return "\n".join(span.to_json() for span in self)


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})
