"""An OpenTelemetry span around each job of an in-process worker. It never raises: a span is not worth a job."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextvars import Context
from functools import cache
from typing import Any

from conquiet.observe.spans import Spans

__all__ = ["JobSpan"]

_log = logging.getLogger("conquiet.observe")


class JobSpan:
    """A span that is current in `context` until it ends; nothing where nobody listens."""

    __slots__ = ("_span", "_spans")

    def __init__(self, context: Context, attributes: Mapping[str, Any]) -> None:
        self._spans: Spans | None = _safely(Spans.if_wanted, "conquiet.local")
        self._span: Any = None
        if self._spans is not None:
            self._span = _safely(self._spans.start, "conquiet.local.job", context, attributes)

    def end(self, failure: tuple[str, str] | None) -> None:
        """`failure`: the type and the message of what the job failed with."""
        if self._spans is not None and self._span is not None:
            if failure is not None:
                _safely(self._spans.fail, self._span, *failure)
            _safely(self._span.end)


def _safely(record: Callable[..., Any], *args: Any) -> Any:
    try:
        return record(*args)
    except Exception:  # noqa: BLE001 - spans never raise
        _say_once()
        return None


@cache
def _say_once() -> None:
    _log.exception("the tracing backend failed; jobs go on, spans may be missing (said once)")
