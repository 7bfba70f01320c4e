"""Cancels asyncio calls at a chosen await: at the first, at the second, and so on."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from conquiet.verify.findings import bound

__all__ = ["CHECK_NAME", "Sweep", "cancelled", "told"]

CHECK_NAME = "asyncio calls cancelled at every await: nothing lost"
_PATIENCE = 30.0


async def cancelled(work: Coroutine[Any, Any, Any], nth: int) -> tuple[bool, Any]:
    """Run `work` and cancel it when it waits for the nth time (from 0).

    Returns whether there was such an await, and the result of the call, or None if it was cancelled. A call may complete
    in spite of the cancellation.
    """
    striking = _CancelledAt(work, nth)

    async def run() -> Any:
        return await striking

    task = asyncio.create_task(run())
    await asyncio.wait([task], timeout=_PATIENCE)
    if not task.done():
        task.cancel()
        raise TimeoutError(f"a cancelled call still ran after {_PATIENCE:g} s")
    return striking.struck, None if task.cancelled() else task.result()


class Sweep:
    """Cancels each call in turn: at its first await, at its second and so on, until it has no more."""

    def __init__(self, names: list[str]) -> None:
        self._names = names
        self._places = Counter[str]()
        self._turn = 0
        self.cancelled = 0
        self.most_awaits = Counter[str]()

    def next(self) -> tuple[str, int]:
        """The next call, and the await at which it is cancelled."""
        name = self._names[self._turn % len(self._names)]
        self._turn += 1
        return name, self._places[name]

    def note(self, name: str, struck: bool) -> None:
        """Note whether call `name` had that await."""
        if struck:
            self.cancelled += 1
            self._places[name] += 1
            self.most_awaits[name] = max(self.most_awaits[name], self._places[name])
        else:
            self._places[name] = 0


def told(sweep: Sweep) -> str:
    """The result of a sweep, as a line."""
    places = len(list(sweep.most_awaits.elements()))
    return f"{sweep.cancelled} cancelled at {places} awaits of {len(sweep.most_awaits)} calls, 0 lost; {bound(sweep.cancelled)}"


class _CancelledAt:
    """A coroutine whose task is cancelled when it waits for the nth time."""

    def __init__(self, work: Coroutine[Any, Any, Any], nth: int) -> None:
        self._work = work
        self._nth = nth
        self.struck = False

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._work.__await__()
        waits = 0
        resume: Callable[[], Any] = lambda: next(steps)  # noqa: E731
        while True:
            try:
                waited_for = resume()
            except StopIteration as end:
                return end.value
            if waits == self._nth:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                self.struck = True
            waits += 1
            try:
                value = yield waited_for
                resume = lambda value=value: steps.send(value)  # type: ignore[misc]  # noqa: E731
            except BaseException as error:  # noqa: BLE001 - passed on to the coroutine
                resume = lambda error=error: steps.throw(error)  # type: ignore[misc]  # noqa: E731
