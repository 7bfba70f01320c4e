"""Connectors: the sources of transactions, where they are also settled, for threads and for asyncio."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol

from conquiet.task.outcome import Outcome
from conquiet.task.transaction import Transaction

__all__ = ["AsyncConnector", "Connector"]


class Connector(Protocol):
    """The source that `ConsumerMixin` consumes. Two more methods are optional:

    - `settle(outcomes: Sequence[Outcome]) -> Collection[Outcome] | None`: tell the source how these transactions
      ended. It returns those that could not be settled (such as a lost lease), which are reported as unsettled.
    - `release(outcomes: Sequence[Outcome]) -> None`: the loop has ended and will not settle these. Those with
      0 `attempts` were not begun.
    """

    def fetch_transactions(self, batch_size: int, **extra: Any) -> Sequence[Transaction]:
        """At most `batch_size` transactions; an empty list if there are none now."""


class AsyncConnector(Protocol):
    """The source that `AsyncConsumerMixin` consumes; `settle_async` and `release_async` are optional."""

    async def fetch_transactions_async(self, batch_size: int, **extra: Any) -> Sequence[Transaction]:
        """At most `batch_size` transactions; an empty list if there are none now."""


Unsettled = Collection[Outcome] | None
