"""What was seen of a run: every call with its virtual time and arguments, and the report at the end."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from conquiet.flow import current_fence
from conquiet.task import ConsumeReport, Outcome, Transaction
from conquiet.task.exceptions import TransactionException
from tests.parity.task.script import ERRORS, Act, Script


@dataclass
class Trace:
    """The parts of a run on which the two variants must agree."""

    lives: dict[str, list[str]] = field(default_factory=dict)  # by transaction id, in order
    fetches: list[str] = field(default_factory=list)
    messages: dict[str, list[str]] = field(default_factory=dict)  # of the exceptions that handlers got
    settled: Counter[str] = field(default_factory=Counter)
    shown: Counter[str] = field(default_factory=Counter)
    released: Counter[str] = field(default_factory=Counter)
    report: dict[str, Any] | None = None
    raised: str | None = None
    ended: float = 0.0
    most: int = 0  # the most transactions in flight at a time
    doubled: list[str] = field(default_factory=list)  # ids that were processed twice at a time


class Recorder:
    """Records a trace while a script runs, from any thread or task."""

    def __init__(self, script: Script, now: Callable[[], float]) -> None:
        self.script = script
        self.trace = Trace()
        self.stop: Callable[[], None] = lambda: None
        self.now = now
        self.closed = False
        self._counts: Counter[str] = Counter()
        self.active: dict[Call, None] = {}
        self.lock = threading.Lock()

    def step(self, name: str, tx: Transaction, told: Any = None) -> Call:
        """A call of the task. `told` is the handlers' argument besides the transaction."""
        shown = ""
        if isinstance(told, TransactionException):
            shown = f"({told.category}{_cause(told)})"
            with self.lock:
                self.trace.messages.setdefault(tx.id, []).append(str(told))
            assert told.transaction_id == tx.id
        elif name == "success":
            shown = f"({told})"
        lines = self.trace.lives.setdefault(tx.id, [])
        return Call(self, f"{tx.id} {name}", f"{name}{shown}", lines, tx.id)

    def fetch(self, size: int, extra: dict[str, Any]) -> Call:
        extras = "".join(f", {key}={value}" for key, value in sorted(extra.items()))
        return Call(self, "fetch", f"fetch({size}{extras})", self.trace.fetches, None)

    def other(self, name: str) -> Call:
        return Call(self, name, name, [], None)

    def settle(self, outcomes: Sequence[Outcome]) -> Call:
        with self.lock:
            if not self.closed:
                self.trace.settled.update(map(described, outcomes))
        return self.other("settle")

    def show(self, outcome: Outcome) -> Call:
        with self.lock:
            if not self.closed:
                self.trace.shown[described(outcome)] += 1
        return self.other("show")

    def release(self, outcomes: Sequence[Outcome]) -> Call:
        with self.lock:
            if not self.closed:
                self.trace.released.update(map(described, outcomes))
        return self.other("release")

    def number(self, name: str) -> int:
        with self.lock:
            self._counts[name] += 1
            return self._counts[name] - 1

    def close(self, report: ConsumeReport | None, raised: BaseException | None) -> Trace:
        """The loop has ended: what abandoned calls do from now on is not recorded."""
        with self.lock:
            self.closed = True
        self.trace.ended = self.now()
        if report is not None:
            assert report.fetched == report.succeeded + report.failed + report.unsettled
            self.trace.report = {
                name: getattr(report, name)
                for name in (
                    "fetched",
                    "processed",
                    "succeeded",
                    "failed",
                    "unsettled",
                    "by_category",
                    "stop_reason",
                )
            }
        if raised is not None:
            self.trace.raised = "interrupt" if _is_interrupt(raised) else type(raised).__name__
        return self.trace


class Call(AbstractContextManager["Call"]):
    """One call of the script. Use it as `with call:`; `call.end()` returns its result or raises."""

    def __init__(self, recorder: Recorder, name: str, text: str, lines: list[str], tx_id: str | None) -> None:
        self._recorder = recorder
        self._text = text
        self._lines = lines
        self._tx_id = tx_id
        self._fence = current_fence()
        self.act: Act = recorder.script.act(name, recorder.number(name))

    def __enter__(self) -> Call:
        recorder = self._recorder
        with recorder.lock:
            if self._tx_id is not None and not recorder.closed:
                running = [call._tx_id for call in recorder.active if not call._fence.closed]
                if self._tx_id in running:
                    recorder.trace.doubled.append(self._tx_id)
                recorder.trace.most = max(recorder.trace.most, len(running) + 1)
                recorder.active[self] = None
            if not recorder.closed:
                self._line = len(self._lines)
                self._began = f"{self._text} {_time(recorder.now())}-"
                self._lines.append(self._began)
        if self.act.stops:
            recorder.stop()
        return self

    def __exit__(self, *_: object) -> None:
        with self._recorder.lock:
            self._recorder.active.pop(self, None)

    def end(self) -> Any:
        error = None if self.act.raises is None else ERRORS[self.act.raises]()
        how = f" !{self.act.raises}" if error is not None else ""
        with self._recorder.lock:
            if not self._recorder.closed and not self._fence.closed:
                self._lines[self._line] = f"{self._began}{_time(self._recorder.now())}{how}"
        if error is not None:
            raise error
        return self.act.returns


def described(outcome: Outcome) -> str:
    parts = [outcome.transaction_id, str(outcome.status)]
    if outcome.category is not None:
        parts.append(str(outcome.category))
    if outcome.result is not None:
        parts.append(f"={outcome.result}")
    if outcome.handled:
        parts.append("handled")
    return f"{' '.join(parts)} x{outcome.attempts}"


def _time(seconds: float) -> str:
    return f"{round(seconds, 6):g}"


def _cause(error: TransactionException) -> str:
    return f" {type(error.cause).__name__}" if error.cause is not None else ""


def _is_interrupt(error: BaseException) -> bool:
    return type(error).__name__ in ("KeyboardInterrupt", "CancelledError")


def is_the_end(seen: float, expected: float) -> bool:
    """Whether a loop ended on time. Settling takes a moment; a thread that is cut off notices within half a second."""
    return expected <= seen <= expected + 0.51
