"""The log of a command that runs for long: one line per record on standard error, from INFO on."""

from __future__ import annotations

import logging
import time

__all__ = ["LineFormatter", "log_to_stderr"]


def log_to_stderr() -> None:
    """Log lines for people, unless the app has set up logging itself."""
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter())
    logging.basicConfig(handlers=[handler], level=logging.INFO)


class LineFormatter(logging.Formatter):
    """Writes what the standard formatter writes, more quickly: a worker of quick tasks writes thousands of lines per second.

    The text of a second is made once. It is kept together with its second, because several threads write lines.
    """

    _second = ("", -1)

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        if record.exc_info or record.exc_text or record.stack_info:
            return super().format(record)
        second = int(record.created)
        text, known = self._second
        if known != second:
            text = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(second))
            self._second = (text, second)
        return f"{text},{int(record.msecs):03d} {record.levelname} {record.name}: {record.getMessage()}"
