"""Failed jobs: one structured log record each, and the most recent ones in memory, for tests."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from conquiet import redaction
from conquiet.local.item import QueueItem, shown, told_by
from conquiet.observe import SafeLogger

__all__ = ["LAST_EXCEPTIONS", "MAX_REMEMBERED", "error_text", "report_failure"]

MAX_REMEMBERED = 100
MAX_TEXT = 8_192

LAST_EXCEPTIONS: list[dict[str, Any]] = []
"""The last failures of all workers in this process, oldest first: the job's `log_fields`, `error`, `type`."""

_log = SafeLogger("conquiet.local")
_lock = threading.Lock()


_TAKEN = frozenset(vars(logging.makeLogRecord({}))) | {
    *("message", "asctime", "event", "correlation_id", "priority", "seq", "error", "error_type", "type")
}


def report_failure(item: QueueItem, error: BaseException, notes: Sequence[str] = ()) -> None:
    """Log that `item`'s job failed with `error`, and remember it. Nothing of the job or the error can make it raise."""
    told = _log_fields(item.job)
    correlation_id = told_by(item.job, "correlation_id")
    name, text = type(error).__name__, error_text(error)
    with _lock:
        LAST_EXCEPTIONS.append({**told, "error": text, "type": name})
        del LAST_EXCEPTIONS[:-MAX_REMEMBERED]
    # The traceback is logged as redacted text: exc_info would print a password in the exception's message.
    where = "\n".join([redaction.traceback_text(error, MAX_TEXT, frames=-20), *notes])
    _log.error(
        "job failed: %scorrelation_id=%s priority=%s seq=%d error=%s: %s\n%s",
        "".join(f"{field}={shown(value, repr)} " for field, value in told.items()),
        shown(correlation_id, repr),
        item.priority_label,
        item.seq,
        name,
        text,
        where,
        extra={
            "event": "job_failed",
            **told,
            "correlation_id": correlation_id,
            "priority": item.priority_label,
            "seq": item.seq,
            "error": text,
            "error_type": name,
        },
    )


def _log_fields(job: Any) -> dict[str, Any]:
    """Return the fields by which the job identifies itself, without names that log records and failures use."""
    fields = told_by(job, "log_fields")
    try:
        return (
            {name: fields[name] for name in fields if name not in _TAKEN}
            if isinstance(fields, Mapping)
            else {}
        )
    except Exception:  # noqa: BLE001 - a mapping of the job's own making
        return {}


def error_text(error: BaseException, limit: int = MAX_TEXT) -> str:
    """Return the exception's message, at most `limit` characters, without passwords."""
    return redaction.error_text(error, limit)
