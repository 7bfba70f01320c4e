"""The two variants of every connector: a connector is written once, as flows, and driven by one of these.

The engine calls these methods, as it calls those of anybody's connector, and does not drive the flows itself. A fetch
has a time limit and a context of its own: on threads only a call that can be abandoned has them, a flow has not. And
a subclass that overrides `settle` expects to be called.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from conquiet.flow import Flow, run, run_async
from conquiet.task import Outcome, Transaction

__all__ = ["AsyncFetches", "AsyncSettles", "Fetches", "Settles"]


class _FetchFlows:
    fetch: Callable[..., Flow[list[Transaction]]]


class _SettleFlows(_FetchFlows):
    settled: Callable[[Sequence[Outcome]], Flow[Collection[Outcome]]]
    released: Callable[[Sequence[Outcome]], Flow[None]]


class Fetches(_FetchFlows):
    """Methods for `ConsumerMixin`, of a source that is not told what became of its transactions."""

    def fetch_transactions(self, batch_size: int, **extra: Any) -> list[Transaction]:
        return run(self.fetch(batch_size, **extra))


class Settles(Fetches, _SettleFlows):
    """Methods for `ConsumerMixin`, of a source that settles."""

    def settle(self, outcomes: Sequence[Outcome]) -> Collection[Outcome]:
        return run(self.settled(outcomes))

    def release(self, outcomes: Sequence[Outcome]) -> None:
        run(self.released(outcomes))


class AsyncFetches(_FetchFlows):
    """Methods for `AsyncConsumerMixin`, of a source that is not told what became of its transactions."""

    async def fetch_transactions_async(self, batch_size: int, **extra: Any) -> list[Transaction]:
        return await run_async(self.fetch(batch_size, **extra))


class AsyncSettles(AsyncFetches, _SettleFlows):
    """Methods for `AsyncConsumerMixin`, of a source that settles."""

    async def settle_async(self, outcomes: Sequence[Outcome]) -> Collection[Outcome]:
        return await run_async(self.settled(outcomes))

    async def release_async(self, outcomes: Sequence[Outcome]) -> None:
        await run_async(self.released(outcomes))
