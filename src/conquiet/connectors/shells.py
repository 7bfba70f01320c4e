"""The two variants of every connector: a connector is written once, as flows, and driven by one of these."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from conquiet.flow import Flow, run, run_async
from conquiet.task import Outcome, Transaction

__all__ = ["AsyncFetches", "AsyncSettles", "Fetches", "Settles"]


class _Fetching:
    fetch: Callable[..., Flow[list[Transaction]]]


class _Settling(_Fetching):
    settled: Callable[[Sequence[Outcome]], Flow[Collection[Outcome]]]
    released: Callable[[Sequence[Outcome]], Flow[None]]


class Fetches(_Fetching):
    """For `ConsumerMixin`."""

    def fetch_transactions(self, batch_size: int, **extra: Any) -> list[Transaction]:
        return run(self.fetch(batch_size, **extra))


class Settles(Fetches, _Settling):
    """... and it settles."""

    def settle(self, outcomes: Sequence[Outcome]) -> Collection[Outcome]:
        return run(self.settled(outcomes))

    def release(self, outcomes: Sequence[Outcome]) -> None:
        run(self.released(outcomes))


class AsyncFetches(_Fetching):
    """For `AsyncConsumerMixin`."""

    async def fetch_transactions_async(self, batch_size: int, **extra: Any) -> list[Transaction]:
        return await run_async(self.fetch(batch_size, **extra))


class AsyncSettles(AsyncFetches, _Settling):
    """... and it settles."""

    async def settle_async(self, outcomes: Sequence[Outcome]) -> Collection[Outcome]:
        return await run_async(self.settled(outcomes))

    async def release_async(self, outcomes: Sequence[Outcome]) -> None:
        await run_async(self.released(outcomes))
