"""Random flows as data, and how to run one on any driver and record what it sees.

A program is a tuple of operations. Running it appends to one trace per flow (a flow and its children are not
ordered against each other), so two drivers agree exactly when their traces are equal.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from conquiet.flow import Beside, Call, Cancellation, Child, Flow, Signal, Sleep, kept

Op = tuple[Any, ...]
Block = tuple[Op, ...]

LIMIT = 0.002  # real seconds on two of the drivers, so as short as possible


class Boom(BaseException):
    """An exception that `except Exception` does not catch."""


ERRORS: dict[str, type[BaseException]] = {
    e.__name__: e for e in (ValueError, TimeoutError, StopIteration, GeneratorExit, KeyboardInterrupt, Boom)
}

_step = st.one_of(
    st.tuples(st.just("answer"), st.integers(0, 9), st.booleans(), st.booleans()),
    st.tuples(st.just("fail"), st.sampled_from(sorted(ERRORS)), st.booleans(), st.booleans()),
    st.tuples(st.just("sleep"), st.sampled_from([0.0, 0.0005]), st.booleans()),
    st.tuples(st.just("signalled"), st.booleans()),
    st.tuples(st.just("limited"), st.booleans(), st.booleans()),
    st.tuples(st.just("cancel_me"), st.booleans(), st.booleans()),
)


def _block(op: st.SearchStrategy[Op]) -> st.SearchStrategy[Block]:
    return st.lists(op, max_size=4).map(tuple)


_op = st.recursive(
    _step,
    lambda op: st.one_of(
        st.tuples(st.just("attempt"), _block(op), st.sampled_from([Exception, BaseException]), _block(op)),
        st.tuples(st.just("cleanup"), _block(op), _block(op)),
        st.tuples(st.just("beside"), _block(op), st.booleans(), st.booleans(), _block(op)),
        st.tuples(st.just("kept"), _block(op), _block(op)),
    ),
    max_leaves=12,
)
programs = _block(_op)


class PlainCalls:
    """The calls of a program on the thread driver."""

    def __init__(self) -> None:
        self.release = threading.Event()  # releases the calls that were abandoned on threads

    def answer(self, act: Callable[[], Any], suspends: bool) -> Callable[[], Any]:
        return act

    def endless(self) -> Any:
        self.release.wait()


class TaskCalls(PlainCalls):
    """The same for asyncio: coroutines where calls take time."""

    def answer(self, act: Callable[[], Any], suspends: bool) -> Callable[[], Any]:
        async def suspending() -> Any:
            value = act()
            await asyncio.sleep(0)
            return value

        return suspending if suspends else act

    async def endless(self) -> Any:
        await asyncio.get_running_loop().create_future()


class VirtualCalls(PlainCalls):
    """The same for the virtual driver: flows where calls take time."""

    def answer(self, act: Callable[[], Any], suspends: bool) -> Callable[[], Any]:
        def suspending() -> Flow[Any]:
            value = act()
            # Shielded: a cancellation that the call itself requests must reach its flow, not the call.
            yield Sleep(0, shield=True)
            return value

        return suspending if suspends else act

    def endless(self) -> Flow[None]:
        yield Sleep(None)


class Program:
    """Turns operations into flows, and keeps their traces."""

    def __init__(self, calls: PlainCalls) -> None:
        self.calls = calls
        self.traces: dict[str, list[Any]] = {}

    def flow(self, ops: Block, name: str, cancel: Cancellation) -> Flow[str]:
        """The operations as a flow, recorded in the trace `name` and cancelled by `cancel`."""
        run = _Run(self, name, self.traces.setdefault(name, []), cancel)
        try:
            yield from run.block(ops, name)
        except BaseException as error:
            run.trace.append(("ends with", described(error)))
            raise
        run.trace.append("returns")
        return name


class _Run:
    """One flow of a program: each kind of operation is a method."""

    def __init__(self, program: Program, name: str, trace: list[Any], cancel: Cancellation) -> None:
        self.program = program
        self.calls = program.calls
        self.name = name
        self.trace = trace
        self.cancel = cancel

    def block(self, ops: Block, name: str) -> Flow[None]:
        for index, op in enumerate(ops):
            try:
                yield from getattr(self, op[0])(f"{name}.{index}", *op[1:])
            except BaseException as error:
                self.trace.append((op[0], described(error)))
                raise

    def answer(self, name: str, value: int, suspends: bool, shield: bool) -> Flow[None]:
        self.trace.append(("got", (yield Call(self.calls.answer(lambda: value, suspends), shield=shield))))

    def fail(self, name: str, error: str, suspends: bool, shield: bool) -> Flow[None]:
        def act() -> None:
            raise ERRORS[error]

        # A coroutine cannot raise StopIteration (PEP 479), and a task hands KeyboardInterrupt to the loop.
        suspends = suspends and error not in ("StopIteration", "KeyboardInterrupt")
        yield Call(self.calls.answer(act, suspends), shield=shield)

    def sleep(self, name: str, seconds: float, shield: bool) -> Flow[None]:
        self.trace.append(("slept", (yield Sleep(seconds, shield=shield))))

    def signalled(self, name: str, shield: bool) -> Flow[None]:
        signal = Signal()
        signal.set()
        self.trace.append(("woken", (yield Sleep(None, Signal(), signal, shield=shield))))

    def limited(self, name: str, slow: bool, shield: bool) -> Flow[None]:
        call = self.calls.endless if slow else self.calls.answer(lambda: "in time", False)
        self.trace.append(("got", (yield Call(call, timeout=LIMIT if slow else 60.0, shield=shield))))

    def cancel_me(self, name: str, suspends: bool, shield: bool) -> Flow[None]:
        yield Call(self.calls.answer(self.cancel.request, suspends), shield=shield)
        self.trace.append("asked")

    def attempt(self, name: str, body: Block, caught: type[BaseException], handler: Block) -> Flow[None]:
        try:
            yield from self.block(body, name + "b")
        except caught as error:
            self.trace.append(("caught", described(error)))
            yield from self.block(handler, name + "h")

    def cleanup(self, name: str, body: Block, last: Block) -> Flow[None]:
        try:
            yield from self.block(body, name + "b")
        finally:
            yield from self.block(last, name + "f")

    def beside(self, name: str, ops: Block, parks: bool, looks: bool, main: Block) -> Flow[None]:
        ready, still = Signal(), Signal()
        own: list[Cancellation] = []

        def beside() -> Flow[str]:
            yield Sleep(None, ready, shield=True)
            return (yield from self._until_still(ops, name + "c", own[0], still, parks))

        child: Child[str] = yield Beside(beside(), name=name)
        own.append(child.cancellation)
        ready.set()
        yield Sleep(None, still, shield=True)
        yield from self.block(main, name + "m")
        if parks:
            child.cancel()
        yield Sleep(None, child.finished, shield=True)
        if looks:
            self.trace.append(("looked", described(child.failure)))

    def kept(self, name: str, main: Block, keeper: Block) -> Flow[None]:
        still = Signal()

        def body() -> Flow[None]:
            yield Sleep(None, still, shield=True)
            yield from self.block(main, name + "m")

        keeping = self._until_still(keeper, name + "k", Cancellation(), still, parks=True)
        outcome = yield from kept(body(), keeping)
        self.trace.append(("kept", described(outcome.keeper_failure)))

    def _until_still(
        self, ops: Block, name: str, cancel: Cancellation, still: Signal, parks: bool
    ) -> Flow[str]:
        """Run the operations, then set `still`. The parent waits for it, so the result does not depend on timing."""
        try:
            value = yield from self.program.flow(ops, name, cancel)
        finally:
            still.set()
        if parks:
            yield Sleep(None)
        return value


def described(error: BaseException | None) -> Any:
    """The part of an exception on which two drivers must agree: its type, and the failures in its notes."""
    if error is None:
        return None
    notes = [": ".join(note.split(": ")[:2]) for note in getattr(error, "__notes__", [])]
    return (type(error).__name__, *notes)
