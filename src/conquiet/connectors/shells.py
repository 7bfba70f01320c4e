"""The two variants of every connector: a connector is written once, as flows, and driven by one of these classes.

The engine calls these methods, as it does for any connector, and does not drive the flows itself, for two reasons. A
fetch has its own time limit and context, which on threads needs a call that can be abandoned, not a flow. And a
subclass that overrides `settle` expects to be called.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from conquiet.errors import TaskConfigError
from conquiet.flow import Flow, run, run_async
from conquiet.task import Outcome, Transaction

__all__ = ["AsyncFetches", "AsyncSettles", "Fetches", "Settles", "check_source"]


def check_source(connector: object, source: object, kind: type, made_by: str = "") -> None:
    """Refuse anything but a `kind`, also the same for the other variant: its calls would wait for nobody."""
    if not isinstance(source, kind):
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        hint = f" ({made_by} makes one)" if made_by else ""
        raise TaskConfigError(
            f"{type(connector).__name__} takes {article} {kind.__name__}{hint}, not {type(source).__name__}"
        )


class _FetchFlows:
    fetch: Callable[..., Flow[list[Transaction]]]


class _SettleFlows(_FetchFlows):
    settled: Callable[[Sequence[Outcome]], Flow[Collection[Outcome]]]
    released: Callable[[Sequence[Outcome]], Flow[None]]


class Fetches(_FetchFlows):
    """The methods for `ConsumerMixin` of a source that does not settle."""

    def fetch_transactions(self, batch_size: int, **extra: Any) -> list[Transaction]:
        return run(self.fetch(batch_size, **extra))


class Settles(Fetches, _SettleFlows):
    """The methods for `ConsumerMixin` of a source that settles."""

    def settle(self, outcomes: Sequence[Outcome]) -> Collection[Outcome]:
        return run(self.settled(outcomes))

    def release(self, outcomes: Sequence[Outcome]) -> None:
        run(self.released(outcomes))


class AsyncFetches(_FetchFlows):
    """The methods for `AsyncConsumerMixin` of a source that does not settle."""

    async def fetch_transactions_async(self, batch_size: int, **extra: Any) -> list[Transaction]:
        return await run_async(self.fetch(batch_size, **extra))


class AsyncSettles(AsyncFetches, _SettleFlows):
    """The methods for `AsyncConsumerMixin` of a source that settles."""

    async def settle_async(self, outcomes: Sequence[Outcome]) -> Collection[Outcome]:
        return await run_async(self.settled(outcomes))

    async def release_async(self, outcomes: Sequence[Outcome]) -> None:
        await run_async(self.released(outcomes))
