"""Late batches: what a fetch returns after it was given up at its time limit goes back to the connector."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from conquiet.flow import Call, Flow, run
from conquiet.observe import SafeLogger
from conquiet.redaction import described
from conquiet.task.outcome import Outcome, left_over
from conquiet.task.transaction import Transaction

__all__ = ["LateBatches"]

_log = SafeLogger("conquiet.engine")


class LateBatches:
    """The late batches of one loop. While the loop runs it releases them; afterwards they are released from here.

    They are not in its report, which must not depend on whether a thread that was given up happens to come back in time.
    """

    def __init__(self, release: Callable[..., Any] | None, wake: Callable[[], None]) -> None:
        self._release = release
        self._wake = wake
        self._lock = threading.Lock()
        self._closed = False
        self.waiting: list[Outcome] = []

    def add(self, value: Any) -> None:
        """Take what the fetch returned. Called on the abandoned thread, or in the task of the fetch."""
        items = value if isinstance(value, list | tuple) else ()
        batch = [left_over(item) for item in items if isinstance(item, Transaction)]
        if not batch:
            return
        ids = ", ".join(outcome.transaction_id[:64] for outcome in batch[:3])
        _log.warning(
            "a fetch returned %d transactions (%s%s) after its time limit: they are not processed, and %s",
            len(batch),
            ids,
            ", …" if len(batch) > 3 else "",
            "the connector cannot take them back" if self._release is None else "go back to the connector",
        )
        with self._lock:
            if not self._closed:
                self.waiting += batch
                self._wake()
                return
        self._give_back(batch)

    def take(self) -> list[Outcome]:
        """Return those that arrived since the last call."""
        with self._lock:
            taken, self.waiting = self.waiting, []
        return taken

    def close(self) -> list[Outcome]:
        """The loop ends: return the last ones; those that come later are released at once."""
        with self._lock:
            self._closed = True
        return self.take()

    def _give_back(self, outcomes: Sequence[Outcome]) -> None:
        release = self._release
        if release is None:
            return

        def released() -> Flow[None]:
            yield Call(release, outcomes)

        try:
            run(released())
        except Exception as error:  # noqa: BLE001 - the loop has ended: there is only the log to tell
            _log.error("the connector could not release them: %s", described(error))
