"""Where transactions come from and where they are settled: two small contracts, one per variant of the engine."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol

from conquiet.task.outcome import Outcome
from conquiet.task.transaction import Transaction

__all__ = ["AsyncConnector", "Connector"]


class Connector(Protocol):
    """What `ConsumerMixin` consumes from. A connector may have two more methods, or not:

    - `settle(outcomes: Sequence[Outcome]) -> Collection[Outcome] | None`: tell the source what became of these
      transactions; what it returns could not be settled (a lease was lost) and is reported so.
    - `release(outcomes: Sequence[Outcome]) -> None`: the loop has ended and these will never be settled; those with
      no `attempts` were not begun.
    """

    def fetch_transactions(self, batch_size: int, **extra: Any) -> Sequence[Transaction]:
        """At most `batch_size` transactions; none if there are none now."""


class AsyncConnector(Protocol):
    """What `AsyncConsumerMixin` consumes from; likewise with `settle_async` and `release_async`, or not."""

    async def fetch_transactions_async(self, batch_size: int, **extra: Any) -> Sequence[Transaction]:
        """At most `batch_size` transactions; none if there are none now."""


Unsettled = Collection[Outcome] | None
