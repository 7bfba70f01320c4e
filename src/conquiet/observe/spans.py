"""OpenTelemetry spans, through its API only. Without a tracer provider there are no spans and no cost."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import Context
from typing import Any

from conquiet.observe.failsafe import say_once

__all__ = ["Spans"]


class Spans:
    """Starts spans in contexts that are discarded afterwards, so that nothing has to be reset.

    No method raises: a span must not fail a transaction. A span that could not be started is None, which the other
    methods accept.
    """

    __slots__ = ("_attach", "_error", "_in_context", "_tracer")

    def __init__(self, tracer: Any) -> None:
        from opentelemetry import context, trace

        self._tracer = tracer
        self._attach = context.attach
        self._in_context = trace.set_span_in_context
        self._error = trace.StatusCode.ERROR

    @classmethod
    def if_wanted(cls, name: str, provider: Any = None) -> Spans | None:
        """Return spans of `provider`, or of the process's provider; None without OpenTelemetry or a provider."""
        try:
            from opentelemetry import trace
        except ImportError:
            return None
        try:
            if provider is None:
                provider = trace.get_tracer_provider()
            if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
                return None
            return cls(provider.get_tracer(name))
        except Exception:  # noqa: BLE001 - spans never raise
            say_once("tracing")
            return None

    def start(self, name: str, context: Context, attributes: Mapping[str, Any]) -> Any:
        """Start a span below the current one of `context`, and make it the current one there."""
        try:
            return context.run(self._begin, name, attributes)
        except Exception:  # noqa: BLE001 - spans never raise
            say_once("tracing")
            return None

    def _begin(self, name: str, attributes: Mapping[str, Any]) -> Any:
        span = self._tracer.start_span(name, attributes=attributes)
        self._attach(self._in_context(span))
        return span

    def fail(self, span: Any, error_type: str, message: str, **attributes: str) -> None:
        """Record a failure on `span`. `message` is exported as it is: the caller removes secrets."""
        if span is None:
            return
        try:
            span.set_attribute("exception.type", error_type)
            span.set_attribute("exception.message", message)
            for name, value in attributes.items():
                span.set_attribute(f"conquiet.{name}", value)
            span.set_status(self._error, message)
        except Exception:  # noqa: BLE001 - spans never raise
            say_once("tracing")

    def end(self, span: Any) -> None:
        if span is None:
            return
        try:
            span.end()
        except Exception:  # noqa: BLE001 - spans never raise
            say_once("tracing")
