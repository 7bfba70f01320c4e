"""The engine on the virtual driver: one thread, and a seed chooses which flow continues next."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from conquiet.flow import Beside, Cancellation, Flow, Sleep, ThreadCalls
from conquiet.task import ConsumerTask, Outcome, Transaction
from conquiet.task.loop import ConsumeLoop, Source
from conquiet.task.mixins.policies import ConsumerPolicy
from conquiet.testing import ManualClock, VirtualDriver
from tests.parity.task.script import Script
from tests.parity.task.trace import Call, Recorder, Trace
from tests.parity.task.variants import refused, transactions


def on_virtual_driver(script: Script, policy: ConsumerPolicy, seed: int) -> Trace:
    clock, cancel = ManualClock(), Cancellation()
    driver = VirtualDriver(clock, random.Random(seed).randrange)
    recorder = Recorder(script, clock.monotonic)
    task = FlowTask(recorder)
    loop = ConsumeLoop(
        task, Source(task.fetch, task.settle, task.release), policy, clock, ThreadCalls(), task.show
    )
    recorder.stop = loop.stop
    report = raised = None
    try:
        report = driver.run(_interrupted(loop, cancel, script.interrupt_at), cancel=cancel)
    except BaseException as error:
        raised, report = error, getattr(error, "report", None)
    return recorder.close(report, raised)


def _interrupted(loop: ConsumeLoop, cancel: Cancellation, seconds: float | None) -> Flow[Any]:
    if seconds is None:
        return (yield from loop.run())

    def interrupting() -> Flow[None]:
        yield Sleep(seconds)
        cancel.request()

    yield Beside(interrupting())
    return (yield from loop.run())


class FlowTask(ConsumerTask):
    """A task whose calls are flows, and so take virtual time."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def process_transaction(self, transaction: Transaction) -> Flow[Any]:
        return self.play(self.recorder.step("process", transaction))

    def handle_transaction_success(self, transaction: Transaction, result: Any) -> Flow[Any]:
        return self.play(self.recorder.step("success", transaction, result))

    def handle_transaction_exception(self, transaction: Transaction, exception: Any) -> Flow[Any]:
        return self.play(self.recorder.step("exception", transaction, exception))

    def fetch(self, batch_size: int, **extra: Any) -> Flow[Any]:
        return transactions((yield from self.play(self.recorder.fetch(batch_size, extra))))

    def settle(self, outcomes: Sequence[Outcome]) -> Flow[Any]:
        return refused(outcomes, (yield from self.play(self.recorder.settle(outcomes))))

    def release(self, outcomes: Sequence[Outcome]) -> Flow[Any]:
        return self.play(self.recorder.release(outcomes))

    def show(self, outcome: Outcome) -> Flow[Any]:
        return self.play(self.recorder.show(outcome))

    def play(self, call: Call) -> Flow[Any]:
        with call:
            if call.act.takes:
                yield Sleep(call.act.takes)
            return call.end()
