"""Items of any iterable as transactions: for tests, files, and work that is already in memory."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from typing import Any

from conquiet.connectors.shells import AsyncFetches, Fetches
from conquiet.flow import Call, Flow
from conquiet.task import Transaction

__all__ = ["AsyncIterableConnector", "IterableConnector"]

_END: Any = object()


class _Iterables:
    """Items that are transactions stay as they are; others become payloads, with their position as the id.

    If the iterable raises, the items before are returned first, and the next fetch raises the exception.
    """

    def __init__(self, items: Any) -> None:
        self._items: Iterator[Any] | AsyncIterator[Any] = (
            aiter(items) if isinstance(items, AsyncIterable) else iter(items)
        )
        self._taken = 0
        self._failure: Exception | None = None

    def fetch(self, batch_size: int) -> Flow[list[Transaction]]:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        batch: list[Transaction] = []
        while len(batch) < batch_size:
            try:
                if isinstance(self._items, Iterator):
                    item = next(self._items, _END)
                else:
                    item = yield Call(anext, self._items, _END)
            except Exception as error:
                if not batch:
                    raise
                self._failure = error
                break
            if item is _END:
                break
            batch.append(item if isinstance(item, Transaction) else Transaction(str(self._taken), item))
            self._taken += 1
        return batch


class IterableConnector(_Iterables, Fetches):
    """An iterable for `ConsumerMixin`. Nothing is settled."""

    def __init__(self, items: Iterable[Any]) -> None:
        super().__init__(items)


class AsyncIterableConnector(_Iterables, AsyncFetches):
    """An iterable or asynchronous iterable for `AsyncConsumerMixin`."""

    def __init__(self, items: Iterable[Any] | AsyncIterable[Any]) -> None:
        super().__init__(items)
