"""OpenTelemetry spans through its API alone; where nothing listens there are none, and they cost nothing."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import Context
from typing import Any

__all__ = ["Spans"]


class Spans:
    """Starts spans in contexts that are thrown away afterwards, so that nothing has to be put back."""

    __slots__ = ("_attach", "_error", "_in_context", "_tracer")

    def __init__(self, tracer: Any) -> None:
        from opentelemetry import context, trace

        self._tracer = tracer
        self._attach = context.attach
        self._in_context = trace.set_span_in_context
        self._error = trace.StatusCode.ERROR

    @classmethod
    def if_wanted(cls, name: str) -> Spans | None:
        """None where OpenTelemetry is not installed, or no provider has been set that would take the spans."""
        try:
            from opentelemetry import trace
        except ImportError:
            return None
        provider = trace.get_tracer_provider()
        if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
            return None
        return cls(provider.get_tracer(name))

    def start(self, name: str, context: Context, attributes: Mapping[str, Any]) -> Any:
        """A span under the one that is current in `context`, where it is the current one from now on."""
        return context.run(self._begin, name, attributes)

    def _begin(self, name: str, attributes: Mapping[str, Any]) -> Any:
        span = self._tracer.start_span(name, attributes=attributes)
        self._attach(self._in_context(span))
        return span

    def fail(self, span: Any, error_type: str, message: str) -> None:
        span.set_attribute("exception.type", error_type)
        span.set_attribute("exception.message", message)
        span.set_status(self._error, message)
