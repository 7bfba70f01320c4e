"""The two variants of the engine, each running a script in its own kind of virtual time."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any

from conquiet.flow.threads import THREADS
from conquiet.task import AsyncConsumerTask, ConsumerTask, Outcome, Transaction
from conquiet.task.mixins.policies import ConsumerPolicy
from conquiet.testing import AutojumpClock, LoopClock, VirtualLoop
from tests.parity.task.script import Script
from tests.parity.task.trace import Call, Recorder, Trace

Variant = Callable[..., Trace]


def on_threads(script: Script, policy: ConsumerPolicy, *, bare: bool = False) -> Trace:
    """Run the loop. `bare`: with a connector that can only fetch, and without on_outcome."""
    with AutojumpClock() as clock:
        recorder = Recorder(script, clock.monotonic)
        task = ThreadTask(recorder, clock)
        recorder.stop = task.stop
        connector = (BareConnector if bare else ThreadConnector)(task)
        if script.interrupt_at is not None:
            interrupting = Interrupting(clock, script.interrupt_at)
            before = signal.signal(signal.SIGINT, interrupting.tell)
            THREADS.start(interrupting, "interrupting")
        report = raised = None
        try:
            report = task.consume_transactions(
                connector, policy, on_outcome=None if bare else task.show, clock=clock
            )
        except BaseException as error:
            raised, report = error, getattr(error, "report", None)
        finally:
            if script.interrupt_at is not None:
                signal.signal(signal.SIGINT, before)
        return recorder.close(report, raised)


def on_asyncio(script: Script, policy: ConsumerPolicy, *, bare: bool = False) -> Trace:
    async def main() -> Trace:
        clock = LoopClock()
        recorder = Recorder(script, clock.monotonic)
        task = TaskTask(recorder)
        recorder.stop = task.stop
        connector = (AsyncBareConnector if bare else AsyncTaskConnector)(task)
        report = raised = None
        if script.interrupt_at is not None:
            caller = asyncio.current_task()
            assert caller is not None
            asyncio.get_running_loop().call_later(script.interrupt_at, caller.cancel)
        try:
            report = await task.consume_transactions(
                connector, policy, on_outcome=None if bare else task.show, clock=clock
            )
        except BaseException as error:
            raised, report = error, getattr(error, "report", None)
        return recorder.close(report, raised)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


VARIANTS: dict[str, Variant] = {"threads": on_threads, "asyncio": on_asyncio}


def one_on_threads(script: Script, policy: ConsumerPolicy) -> tuple[Trace, Outcome]:
    """`start_processing` of the transaction `a`, outside any loop."""
    with AutojumpClock() as clock:
        recorder = Recorder(script, clock.monotonic)
        outcome = ThreadTask(recorder, clock).start_processing(Transaction("a"), policy, clock=clock)
        return recorder.close(None, None), outcome


def one_on_asyncio(script: Script, policy: ConsumerPolicy) -> tuple[Trace, Outcome]:
    async def main() -> tuple[Trace, Outcome]:
        clock = LoopClock()
        recorder = Recorder(script, clock.monotonic)
        outcome = await TaskTask(recorder).start_processing(Transaction("a"), policy, clock=clock)
        return recorder.close(None, None), outcome

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


ONE = {"threads": one_on_threads, "asyncio": one_on_asyncio}


class ThreadTask(ConsumerTask):
    def __init__(self, recorder: Recorder, clock: AutojumpClock) -> None:
        self.recorder = recorder
        self.clock = clock

    def process_transaction(self, transaction: Transaction) -> Any:
        return self.play(self.recorder.step("process", transaction))

    def handle_transaction_success(self, transaction: Transaction, result: Any) -> None:
        self.play(self.recorder.step("success", transaction, result))

    def handle_transaction_exception(self, transaction: Transaction, exception: Any) -> None:
        self.play(self.recorder.step("exception", transaction, exception))

    def show(self, outcome: Outcome) -> None:
        self.play(self.recorder.show(outcome))

    def play(self, call: Call) -> Any:
        with call:
            if call.act.takes:
                self.clock.sleep(call.act.takes)
            return call.end()


class TaskTask(AsyncConsumerTask):
    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    async def process_transaction(self, transaction: Transaction) -> Any:
        return await self.play(self.recorder.step("process", transaction))

    async def handle_transaction_success(self, transaction: Transaction, result: Any) -> None:
        await self.play(self.recorder.step("success", transaction, result))

    async def handle_transaction_exception(self, transaction: Transaction, exception: Any) -> None:
        await self.play(self.recorder.step("exception", transaction, exception))

    async def show(self, outcome: Outcome) -> None:
        await self.play(self.recorder.show(outcome))

    async def play(self, call: Call) -> Any:
        with call:
            if call.act.takes:
                await asyncio.sleep(call.act.takes)
            return call.end()


class BareConnector:
    def __init__(self, task: ThreadTask) -> None:
        self.task = task

    def fetch_transactions(self, batch_size: int, **extra: Any) -> Any:
        return transactions(self.task.play(self.task.recorder.fetch(batch_size, extra)))


class ThreadConnector(BareConnector):
    def settle(self, outcomes: Sequence[Outcome]) -> Any:
        return refused(outcomes, self.task.play(self.task.recorder.settle(outcomes)))

    def release(self, outcomes: Sequence[Outcome]) -> None:
        self.task.play(self.task.recorder.release(outcomes))


class AsyncBareConnector:
    def __init__(self, task: TaskTask) -> None:
        self.task = task

    async def fetch_transactions_async(self, batch_size: int, **extra: Any) -> Any:
        return transactions(await self.task.play(self.task.recorder.fetch(batch_size, extra)))


class AsyncTaskConnector(AsyncBareConnector):
    async def settle_async(self, outcomes: Sequence[Outcome]) -> Any:
        return refused(outcomes, await self.task.play(self.task.recorder.settle(outcomes)))

    async def release_async(self, outcomes: Sequence[Outcome]) -> None:
        await self.task.play(self.task.recorder.release(outcomes))


class Interrupting:
    """A job that interrupts the main thread at a virtual time, and goes on when the interrupt has arrived."""

    def __init__(self, clock: AutojumpClock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._told = threading.Event()

    def __call__(self) -> None:
        self._clock.sleep(self._seconds)
        os.kill(os.getpid(), signal.SIGINT)
        self._told.wait(10)

    def tell(self, *_: object) -> None:
        self._told.set()
        raise KeyboardInterrupt


def transactions(ids: Any) -> Any:
    """What a scripted fetch returns: two transactions for "a b", [] for None, None for `...`, else `ids` itself."""
    if ids is None:
        return []
    if ids is ...:
        return None
    return [Transaction(name, {"of": name}) for name in ids.split()] if isinstance(ids, str) else ids


def refused(outcomes: Sequence[Outcome], ids: Any) -> Any:
    """The outcomes that a scripted settle refuses: those of two transactions for "a b"."""
    if not isinstance(ids, str):
        return ids
    return [outcome for outcome in outcomes if outcome.transaction_id in ids.split()]
