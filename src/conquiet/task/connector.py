"""Connectors: where transactions come from and where they are settled, for threads and for asyncio."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol

from conquiet.task.outcome import Outcome
from conquiet.task.transaction import Transaction

__all__ = ["AsyncConnector", "Connector"]


class Connector(Protocol):
    """What `ConsumerMixin` consumes from. Two more methods are optional:

    - `settle(outcomes: Sequence[Outcome]) -> Collection[Outcome] | None`: tell the source what became of these
      transactions; it returns those that could not be settled (a lease was lost, say), which are reported as unsettled.
    - `release(outcomes: Sequence[Outcome]) -> None`: the loop has ended and will not settle these; those with
      no `attempts` were not begun.
    """

    def fetch_transactions(self, batch_size: int, **extra: Any) -> Sequence[Transaction]:
        """At most `batch_size` transactions; an empty list if there are none now."""


class AsyncConnector(Protocol):
    """What `AsyncConsumerMixin` consumes from; `settle_async` and `release_async` are optional."""

    async def fetch_transactions_async(self, batch_size: int, **extra: Any) -> Sequence[Transaction]:
        """At most `batch_size` transactions; an empty list if there are none now."""


Unsettled = Collection[Outcome] | None
