"""What can listen to the events of attempts."""

from __future__ import annotations

from collections.abc import Sequence

from conquiet.jobs.worker.held import Held

__all__ = ["AttemptListener"]


class AttemptListener:
    """Overrides what it wants to know. It is called in several threads, and what it raises is logged, once."""

    def wants_starts(self) -> bool:
        """Return whether `started` is to be called for the next jobs. It is asked once per claim."""
        return False

    def claimed(self, batch: Sequence[Held], seconds: float) -> None:
        """The store has answered a claim, perhaps with no job, after so many seconds."""

    def started(self, held: Held) -> None:
        """A handler is about to be called."""

    def recorded(self, seconds: float) -> None:
        """The store has answered a request to record how jobs ended, after so many seconds."""

    def settled(self, batch: Sequence[Held], outcome: str) -> None:
        """The store has recorded how these jobs ended: "succeeded", "failed" or "released"."""

    def lost(self, batch: Sequence[Held], error: BaseException | None) -> None:
        """The leases of these jobs are lost, or how they ended could not be recorded: others run them again."""
