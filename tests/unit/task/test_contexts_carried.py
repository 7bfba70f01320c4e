"""`with_context`, `run_with_timeout` and their asynchronous variants: contexts are carried, limits are kept."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

import pytest
from opentelemetry import trace

from conquiet.task.mixins.utils import (
    run_with_timeout,
    run_with_timeout_async,
    with_context,
    with_context_async,
)
from tests.unit.task.recorded import Recorded

request: contextvars.ContextVar[str] = contextvars.ContextVar("request", default="none")


@pytest.fixture
def spans() -> Recorded:
    return Recorded()


def current_span_id() -> int:
    return trace.get_current_span().get_span_context().span_id


@pytest.mark.clause("E-22")
def test_with_context_takes_todays_context_to_another_thread(spans: Recorded) -> None:
    def look() -> tuple[str, int]:
        found = request.get(), current_span_id()
        request.set("changed")
        return found

    token = request.set("today")
    with spans.tracer.start_as_current_span("outer"):
        carried = with_context(look)
        here = ("today", current_span_id())
    request.reset(token)
    found: list[Any] = []
    for _ in range(2):  # the next call does not see what a call changes
        thread = threading.Thread(target=lambda: found.append(carried()))
        thread.start()
        thread.join()
    assert found == [here, here]
    assert request.get() == "none"
    assert carried.__name__ == "look"


@pytest.mark.clause("E-22")
@pytest.mark.parametrize("waits", [False, True])
def test_with_context_async_takes_todays_context_to_another_task(spans: Recorded, waits: bool) -> None:
    async def look(more: str, *, end: str) -> tuple[Any, ...]:
        if waits:
            await asyncio.sleep(0)
        found = request.get(), current_span_id(), more + end
        request.set("changed")
        return found

    async def main() -> None:
        request.set("today")
        with spans.tracer.start_as_current_span("outer"):
            carried = with_context_async(look)
            here = ("today", current_span_id(), "ab")
        request.set("tomorrow")
        assert await carried("a", end="b") == here
        assert await asyncio.create_task(carried("a", end="b")) == here
        assert await asyncio.gather(*[carried("a", end="b")] * 1, carried("a", end="b")) == [here, here]
        assert request.get() == "tomorrow"
        assert carried.__name__ == "look"

    asyncio.run(main())


@pytest.mark.clause("E-22")
def test_with_context_async_is_cancelled_and_raises_as_the_coroutine_itself() -> None:
    async def slow() -> None:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            heard.append(request.get())
            raise

    async def broken() -> None:
        await asyncio.sleep(0)
        raise LookupError("inside")

    heard: list[str] = []

    async def main() -> None:
        request.set("today")
        carried = asyncio.create_task(with_context_async(slow)())
        request.set("tomorrow")
        await asyncio.sleep(0)
        carried.cancel()
        with pytest.raises(asyncio.CancelledError):
            await carried
        with pytest.raises(LookupError, match="inside"):
            await with_context_async(broken)()

    asyncio.run(main())
    assert heard == ["today"]


@pytest.mark.clause("E-22", "E-16")
def test_run_with_timeout_keeps_the_context_and_the_limit(spans: Recorded) -> None:
    token = request.set("today")
    release = threading.Event()
    try:
        with spans.tracer.start_as_current_span("outer"):
            here = ("today", current_span_id())
            for limit in (None, 30.0):
                assert run_with_timeout(lambda: (request.get(), current_span_id()), timeout=limit) == here
        with pytest.raises(TimeoutError, match=r"limit of 0\.05 s"):
            run_with_timeout(release.wait, 30, timeout=0.05)
        with pytest.raises(LookupError, match="inside"):
            run_with_timeout(fail, timeout=30.0)
    finally:
        release.set()
        request.reset(token)


def fail() -> None:
    raise LookupError("inside")


@pytest.mark.clause("E-22", "E-16")
def test_run_with_timeout_async_keeps_the_context_and_the_limit(spans: Recorded) -> None:
    async def look() -> tuple[str, int]:
        await asyncio.sleep(0)
        return request.get(), current_span_id()

    cancelled: list[bool] = []

    async def hang() -> None:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async def main() -> None:
        request.set("today")
        with spans.tracer.start_as_current_span("outer"):
            here = ("today", current_span_id())
            for limit in (None, 30.0):
                assert await run_with_timeout_async(look, timeout=limit) == here
        with pytest.raises(TimeoutError, match=r"limit of 0\.05 s"):
            await run_with_timeout_async(hang, timeout=0.05)

    asyncio.run(main())
    assert cancelled == [True]
