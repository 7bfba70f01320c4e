"""SIGTERM calls `stop()` while a block runs."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = ["stop_on_sigterm"]

_log = logging.getLogger("conquiet")


@contextmanager
def stop_on_sigterm(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on SIGTERM inside the block; afterwards the previous handler is restored.

    Python lets only the main thread install signal handlers; in another thread nothing is installed, and a log line
    says so. SIGINT is not changed: it raises KeyboardInterrupt.
    """
    if threading.current_thread() is not threading.main_thread():
        _log.warning(
            "this loop does not run in the main thread, so SIGTERM will not stop it: "
            "install a handler in the main thread that calls its stop()"
        )
        yield
        return
    entry = _Stop(stop)
    if not _stops:
        _before.append(signal.signal(signal.SIGTERM, _stop_all))
    _stops.append(entry)
    try:
        yield
    finally:
        _stops.remove(entry)
        if not _stops:
            before = _before.pop()
            # None: the previous handler was not installed from Python and cannot be restored.
            signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


class _Stop:
    """One open block. Several may be open at a time (two consumers in one event loop) and end in any order."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self.stop = stop


_stops: list[_Stop] = []
_before: list[Any] = []  # the handler before the first block; at most one entry


def _stop_all(number: int, frame: FrameType | None) -> None:
    for entry in _stops:
        entry.stop()
