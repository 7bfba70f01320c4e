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

    A handler that the application installed before is called too, after `stop`. If it raises (`sys.exit`), the
    exception is raised when the block has ended, so that the work in hand is finished first.

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
    # SIGTERM may come between any two lines. At each of them it finds the previous handler, or ours with this block in
    # the list: so the block is in the list before ours is installed, and until the previous one is back.
    _stops.append(entry)
    try:
        _install()
        yield
    finally:
        if _stops == [entry]:
            _restore()
        _stops.remove(entry)
        if not _stops and _raised:
            raise _raised.pop()


class _Stop:
    """One open block. Several may be open at a time (two consumers in one event loop) and end in any order."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self.stop = stop


_stops: list[_Stop] = []
_before: list[Any] = []  # the handler before the first block; at most one entry
_raised: list[BaseException] = []  # what it raised, until the last block has ended; at most one entry


def _install() -> None:
    if not _before:
        _before.append(signal.getsignal(signal.SIGTERM))  # in the list before it can be needed
        signal.signal(signal.SIGTERM, _stop_all)


def _restore() -> None:
    before = _before[0]
    if (
        signal.getsignal(signal.SIGTERM) is _stop_all
    ):  # or the application has installed another one meanwhile
        # None: the previous handler was not installed from Python and cannot be restored.
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)
    _before.clear()


def _stop_all(number: int, frame: FrameType | None) -> None:
    for entry in _stops:
        entry.stop()
    own = _before[0] if _before else None
    if callable(own) and not isinstance(own, signal.Handlers):
        try:
            own(number, frame)
        except BaseException as error:  # noqa: BLE001 - raised when the last block has ended
            _raised[:] = [error]
