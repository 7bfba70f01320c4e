"""Items of any iterable as transactions: for tests, files, and work that is already in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Sequence
from typing import Any

from conquiet.connectors.shells import AsyncFetches, Fetches
from conquiet.errors import TaskConfigError
from conquiet.flow import Call, Cancelled, Flow
from conquiet.task import Outcome, Transaction

__all__ = ["AsyncIterableConnector", "IterableConnector"]

_END: Any = object()


class _Iterables:
    """Items that are transactions stay as they are; others become payloads, with their position as the id.

    If the iterable raises, the items before are returned first, and the next fetch raises the exception. If nothing comes
    after it (a generator that has raised is at its end), every further fetch raises it, too: a source that broke is not
    one that is drained. Transactions that were fetched and not begun when the loop ends are fetched again by the next one.
    """

    def __init__(self, items: Any, *, may_await: bool) -> None:
        self._items: Iterator[Any] | AsyncIterator[Any]
        if may_await and isinstance(items, AsyncIterable):
            self._items = aiter(items)
        elif isinstance(items, AsyncIterable) and not isinstance(items, Iterable):
            raise TaskConfigError(
                f"{type(items).__name__} is asynchronous and cannot be iterated on threads: use AsyncIterableConnector, "
                "with an AsyncConsumerTask"
            )
        else:
            try:
                self._items = iter(items)
            except TypeError as error:
                raise TaskConfigError(
                    f"{type(self).__name__} takes an iterable, not {type(items).__name__}"
                ) from error
        self._taken = 0
        self._returned: deque[Transaction] = deque()
        self._failure: BaseException | None = None  # the last thing that came out of the iterable
        self._is_raised = True  # in a fetch

    def fetch(self, batch_size: int) -> Flow[list[Transaction]]:
        if self._failure is not None and not self._is_raised:
            self._is_raised = True
            raise self._failure
        batch: list[Transaction] = []
        while self._returned and len(batch) < batch_size:
            batch.append(self._returned.popleft())
        while len(batch) < batch_size:
            call: Call | None = None
            try:
                if isinstance(self._items, Iterator):
                    item = next(self._items, _END)
                else:
                    call = Call(anext, self._items, _END)
                    item = yield call
            except (Exception, Cancelled) as error:
                if call is not None and call.interrupted:
                    raise  # we were cancelled; a CancelledError out of the iterable itself is its failure
                self._failure, self._is_raised = error, not batch
                if not batch:
                    raise
                break
            if item is _END:
                if self._failure is not None and not batch:
                    raise self._failure
                break
            self._failure = None
            batch.append(item if isinstance(item, Transaction) else Transaction(str(self._taken), item))
            self._taken += 1
        return batch

    def _take_back(self, outcomes: Sequence[Outcome]) -> None:
        unbegun = [outcome.transaction for outcome in outcomes if not outcome.attempts]
        self._returned.extend(transaction for transaction in unbegun if transaction is not None)


class IterableConnector(_Iterables, Fetches):
    """An iterable for `ConsumerMixin`. Nothing is settled."""

    def __init__(self, items: Iterable[Any]) -> None:
        super().__init__(items, may_await=False)

    def release(self, outcomes: Sequence[Outcome]) -> None:
        self._take_back(outcomes)


class AsyncIterableConnector(_Iterables, AsyncFetches):
    """An iterable or asynchronous iterable for `AsyncConsumerMixin`."""

    def __init__(self, items: Iterable[Any] | AsyncIterable[Any]) -> None:
        super().__init__(items, may_await=True)

    async def release_async(self, outcomes: Sequence[Outcome]) -> None:
        self._take_back(outcomes)
