"""Random flows see the same on a thread, on asyncio and on the virtual driver."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from conquiet.flow import Cancellation, ThreadCalls, run, run_async
from conquiet.testing import VirtualDriver
from tests.campaign import campaign_size
from tests.parity.flow.programs import (
    Block,
    PlainCalls,
    Program,
    TaskCalls,
    VirtualCalls,
    described,
    programs,
)

Seen = tuple[dict[str, list[Any]], Any]


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


def on_thread(ops: Block) -> Seen:
    program, cancel = Program(PlainCalls()), Cancellation()
    calls = ThreadCalls(max_abandoned=1000)
    try:
        end = run(program.flow(ops, "main", cancel), cancel=cancel, calls=calls)
    except BaseException as error:
        end = described(error)
    program.calls.release.set()
    return program.traces, end


def on_asyncio(ops: Block, runner: asyncio.Runner) -> Seen:
    program, cancel = Program(TaskCalls()), Cancellation()

    async def drive() -> Any:
        try:
            end = await run_async(program.flow(ops, "main", cancel), cancel=cancel)
        except BaseException as error:
            # A coroutine cannot raise StopIteration: that is a rule of Python, not of this driver.
            stopped = "coroutine raised StopIteration" in str(error)
            end = described(error.__cause__ if stopped else error)
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0, "a request through Cancellation must leave no trace on the task"
        return end

    return program.traces, runner.run(drive())


def on_virtual_clock(ops: Block) -> Seen:
    program, cancel = Program(VirtualCalls()), Cancellation()
    try:
        end = VirtualDriver().run(program.flow(ops, "main", cancel), cancel=cancel)
    except BaseException as error:
        end = described(error)
    return program.traces, end


@pytest.mark.campaign
def test_three_drivers_give_the_same_trace(runner: asyncio.Runner) -> None:
    @settings(
        max_examples=campaign_size(5000),
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    @given(programs)
    def agree(ops: Block) -> None:
        virtual = on_virtual_clock(ops)
        assert on_thread(ops) == virtual
        assert on_asyncio(ops, runner) == virtual

    agree()
