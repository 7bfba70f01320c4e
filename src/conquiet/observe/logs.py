"""Loggers that never raise: a logging handler of the application that fails must not fail the work."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

__all__ = ["SafeLogger"]


class SafeLogger:
    """The logger of this name. A record that a handler fails to write goes to stderr, with the handler's error.

    The handlers of the standard library catch their errors themselves. Those of applications and services may not.
    """

    __slots__ = ("_log",)

    def __init__(self, name: str) -> None:
        self._log = logging.getLogger(name)

    def isEnabledFor(self, level: int) -> bool:
        return self._log.isEnabledFor(level)

    def debug(self, message: str, *args: Any, **options: Any) -> None:
        self._write(logging.DEBUG, message, args, options)

    def info(self, message: str, *args: Any, **options: Any) -> None:
        self._write(logging.INFO, message, args, options)

    def warning(self, message: str, *args: Any, **options: Any) -> None:
        self._write(logging.WARNING, message, args, options)

    def error(self, message: str, *args: Any, **options: Any) -> None:
        self._write(logging.ERROR, message, args, options)

    def exception(self, message: str, *args: Any, **options: Any) -> None:
        self._write(logging.ERROR, message, args, {"exc_info": True, **options})

    def log(self, level: int, message: str, *args: Any, **options: Any) -> None:
        self._write(level, message, args, options)

    def record(
        self,
        level: int,
        message: str,
        args: tuple[Any, ...],
        fields: dict[str, Any],
        traceback: str | None = None,
    ) -> None:
        """Write a record that has `fields` as attributes, as `extra=` gives them, and a traceback that is text.

        `exc_info` would show the secrets in the texts of exceptions. The formatters of the standard library write `exc_text`
        below the message; whoever collects fields finds the same text as `traceback`.
        """
        if traceback is not None:
            fields = {**fields, "exc_text": traceback, "traceback": traceback}
        self.records(level, message, ((args, fields),))

    def records(
        self, level: int, message: str, items: Iterable[tuple[tuple[Any, ...], dict[str, Any]]]
    ) -> None:
        """Write one record for each pair of arguments and fields. It is quick: a worker does this for every job.

        Therefore it is not looked up who calls this, `level` is not checked (do that once for many records), and they have
        the same time, unless the application makes its records itself.
        """
        log = self._log
        first, alike = None, logging.getLogRecordFactory() is logging.LogRecord
        for args, fields in items:
            try:
                if first is None or not alike:
                    first = log.makeRecord(log.name, level, __file__, 0, message, (), None)
                record = object.__new__(type(first))
                record.__dict__ = {**first.__dict__, "args": args, **fields}
                log.handle(record)
            except Exception as error:  # noqa: BLE001 - this is what the class is for
                _write_to_stderr(f"{log.name}: {message}", args, error)

    def _write(self, level: int, message: str, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        try:
            self._log.log(level, message, *args, stacklevel=3, **options)
        except Exception as error:  # noqa: BLE001 - this is what the class is for
            _write_to_stderr(f"{self._log.name}: {message}", args, error)


def _write_to_stderr(message: str, args: tuple[Any, ...], error: Exception) -> None:
    with suppress(Exception):  # an argument that cannot be shown, or no stderr: there is no other place
        print(f"{message % args} (a logging handler raised {type(error).__qualname__})", file=sys.stderr)
