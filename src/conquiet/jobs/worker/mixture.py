"""Coroutines in the worker's event loop, plain functions on threads, in the same worker."""

from __future__ import annotations

import asyncio
from contextvars import copy_context

from conquiet.flow import THREADS, Call, Cancelled, Flow, run
from conquiet.jobs.operations import JobOperations
from conquiet.jobs.worker.context import JobContext
from conquiet.jobs.worker.deferral import Deferral
from conquiet.jobs.worker.execution import Execution, Executor, is_coroutine_function
from conquiet.jobs.worker.plan import JobPlan, JobPlans

__all__ = ["MixedExecutor"]


class MixedExecutor(Executor):
    """The executor of an event loop, with another one for plain functions: these would block the loop.

    `operations` belong to the loop, `on_threads` are the same for threads.
    """

    def __init__(
        self, plans: JobPlans, operations: JobOperations, on_threads: JobOperations, deferral: Deferral
    ) -> None:
        super().__init__(plans, operations, "async", deferral)
        self._on_threads = on_threads
        self._threads = Executor(plans, on_threads, "thread", deferral)

    def run_plan(self, plan: JobPlan, context: JobContext) -> Flow[Execution]:
        if is_coroutine_function(plan.handler):
            return (yield from super().run_plan(plan, context))
        context.move(self._on_threads.backend, awaits=False)
        started = False

        def start() -> asyncio.Future[Execution]:
            nonlocal started
            started = True
            return _on_thread(self._threads.run_plan(plan, context))

        try:
            ended: Execution = yield Call(start)
        except Cancelled as error:  # only the end of the worker cancels this
            if not started:
                return self._failed(context.job, error, plan.retry)
            # The function runs on, so its job must not be given to others.
            return Execution(context.job, error, abandoned=True)
        return ended

    def close(self) -> None:
        super().close()
        self._threads.close()


def _on_thread(flow: Flow[Execution]) -> asyncio.Future[Execution]:
    """Drive `flow`, which does not raise, on a thread of its own."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[Execution] = loop.create_future()
    context = copy_context()

    def work() -> None:
        try:
            result, failure = context.run(run, flow), None
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits
            result, failure = None, error
        try:
            loop.call_soon_threadsafe(_settle, ended, result, failure)
        except RuntimeError:  # the loop is closed: the worker ended without waiting for this
            if not loop.is_closed():
                raise

    THREADS.start(work, "job runner")
    return ended


def _settle(
    future: asyncio.Future[Execution], result: Execution | None, failure: BaseException | None
) -> None:
    if future.done():  # nobody waits any more
        return
    if failure is not None:
        future.set_exception(failure)
    elif result is not None:
        future.set_result(result)
