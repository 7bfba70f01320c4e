"""Failed jobs: one structured line in the log each, and the last of them where tests can look."""

from __future__ import annotations

import logging
import threading
import traceback
from typing import Any

from conquiet.errors import redact
from conquiet.local.item import QueueItem, told_by

__all__ = ["LAST_EXCEPTIONS", "MAX_REMEMBERED", "error_text", "report_failure"]

MAX_REMEMBERED = 100
MAX_TEXT = 8_192

LAST_EXCEPTIONS: list[dict[str, Any]] = []
"""The last failures of all workers of this process, oldest first: `report_id`, `error`, `type`."""

_log = logging.getLogger("conquiet.local")
_lock = threading.Lock()


def report_failure(item: QueueItem, error: BaseException) -> None:
    """Log that `item`'s job failed with `error`, and remember it."""
    report_id = told_by(item.job, "affiliate_report_id")
    correlation_id = told_by(item.job, "correlation_id")
    name, text = type(error).__name__, error_text(error)
    with _lock:
        LAST_EXCEPTIONS.append({"report_id": report_id, "error": text, "type": name})
        del LAST_EXCEPTIONS[:-MAX_REMEMBERED]
    # The traceback as text and not as exc_info, which would print a password that is in the exception's message.
    where = redact("".join(traceback.format_exception(error, limit=-20))[-MAX_TEXT:])
    _log.error(
        "job failed: report_id=%r correlation_id=%r priority=%s seq=%d error=%s: %s\n%s",
        report_id,
        correlation_id,
        item.priority_label,
        item.seq,
        name,
        text,
        where,
        extra={
            "event": "job_failed",
            "report_id": report_id,
            "correlation_id": correlation_id,
            "priority": item.priority_label,
            "seq": item.seq,
            "error": text,
            "error_type": name,
        },
    )


def error_text(error: BaseException, limit: int = MAX_TEXT) -> str:
    """The exception's message: not endless, without passwords."""
    try:
        text = str(error)
    except Exception as unshowable:  # noqa: BLE001 - somebody's __str__ must not stop the worker
        text = f"(its text cannot be shown: {type(unshowable).__qualname__})"
    # Cut twice: a password that the second cut halves was whole, and so was found, before it.
    return redact(text[: limit + 512])[:limit]
