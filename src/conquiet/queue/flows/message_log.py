"""One record of the logger `conquiet.queue` for each event of a message that a consumer handles: a line, and fields.

Payloads are not logged. How often a message was delivered is not known here: Redis would have to be asked for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from conquiet.clock import SYSTEM_CLOCK
from conquiet.flow import describe
from conquiet.observe import SafeLogger
from conquiet.queue.config import QueueConfig
from conquiet.queue.message import MalformedEntry, QueueMessage
from conquiet.redaction import described, first_line, printable, shown_lines, traceback_text

__all__ = ["MessageLog"]

_log = SafeLogger("conquiet.queue")
_MOST_TEXT = 8_192

Message = QueueMessage | MalformedEntry


class MessageLog:
    """What one consumer tells of its messages. It never raises."""

    def __init__(self, config: QueueConfig) -> None:
        self._stream = config.stream_key
        self._shown = printable(config.stream_key)
        self._group = config.consumer_group
        self._consumer = config.consumer_name

    def started(self, message: Message, handler: Callable[..., Any]) -> float:
        """Return when it started, for the call that tells how it ended."""
        if _log.isEnabledFor(logging.DEBUG):
            fields = self._fields(message, handler, "started", None)
            _log.record(logging.DEBUG, "message %s of stream %s: started", (message.id, self._shown), fields)
        return SYSTEM_CLOCK.monotonic()

    def succeeded(self, message: Message, handler: Callable[..., Any], began: float) -> None:
        if _log.isEnabledFor(logging.INFO):
            seconds = SYSTEM_CLOCK.monotonic() - began
            _log.record(
                logging.INFO,
                "message %s of stream %s: succeeded in %.3f s",
                (message.id, self._shown, seconds),
                self._fields(message, handler, "succeeded", seconds),
            )

    def failed(
        self, message: Message, handler: Callable[..., Any], began: float, error: BaseException
    ) -> None:
        """It stays pending. What is no Exception, such as a cancellation, says nothing about the message."""
        interrupted = not isinstance(error, Exception)
        level = logging.INFO if interrupted else logging.WARNING
        if isinstance(error, GeneratorExit) or not _log.isEnabledFor(level):
            return
        seconds = SYSTEM_CLOCK.monotonic() - began
        text = first_line(described(error))
        fields = self._fields(message, handler, "interrupted" if interrupted else "left pending", seconds)
        _log.record(
            level,
            "message %s of stream %s: %s after %.3f s and stays pending: %s",
            (message.id, self._shown, "interrupted" if interrupted else "failed", seconds, text),
            fields | {"error": text, "error_type": type(error).__qualname__},
            None if interrupted else shown_lines(traceback_text(error, _MOST_TEXT)).rstrip("\n"),
        )

    def _fields(
        self, message: Message, handler: Callable[..., Any], outcome: str, seconds: float | None
    ) -> dict[str, Any]:
        return {
            "message_id": message.id,
            "task": describe(handler),
            "queue": self._stream,
            "group": self._group,
            "worker": self._consumer,
            "duration": seconds,
            "outcome": outcome,
        }
