from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from conquiet import signals
from conquiet.signals import stop_on_sigterm


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)
    assert signals._stops == signals._before == signals._raised == []


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_several_blocks_are_all_stopped_and_the_first_handler_comes_back_last() -> None:
    seen: list[str] = []
    own = signal.signal(signal.SIGTERM, lambda *_: seen.append("own"))
    try:
        first, second = stop_on_sigterm(lambda: seen.append("a")), stop_on_sigterm(lambda: seen.append("b"))
        first.__enter__()
        second.__enter__()
        terminate()
        first.__exit__(None, None, None)  # not in reverse order: two tasks of one loop end in any order
        terminate()
        second.__exit__(None, None, None)
        terminate()
    finally:
        signal.signal(signal.SIGTERM, own)
    assert seen == ["a", "b", "own", "b", "own", "own"]


def traced(strike: Callable[[FrameType, str], None]) -> Callable[..., Any]:
    """A trace function that calls `strike` before every bytecode of `conquiet.signals`."""

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != signals.__file__:
            return None
        frame.f_trace_opcodes = True
        strike(frame, event)
        return trace

    return trace


def enter_and_leave(stop: Callable[[], None]) -> None:
    with stop_on_sigterm(stop):
        pass


def moments() -> int:
    """How many places there are in entering and leaving a block at which a signal may come."""
    count = 0

    def strike(frame: FrameType, event: str) -> None:
        nonlocal count
        count += event == "opcode"

    before = sys.gettrace()
    sys.settrace(traced(strike))
    try:
        enter_and_leave(lambda: None)
    finally:
        sys.settrace(before)
    return count


@pytest.mark.clause("C-07")
@pytest.mark.parametrize("own", [True, False], ids=["own handler", "default"])
def test_no_sigterm_is_swallowed_while_a_block_is_entered_or_left(own: bool) -> None:
    """One at every bytecode in turn: it calls stop, or the application's handler, or both.

    Without a handler of the application, SIGTERM ends the process where the block is not open. A signal that would do that
    is not sent: the handler in force at that moment says so.
    """
    everywhere = moments()
    assert everywhere > 40
    swallowed = []
    for moment in range(everywhere):
        seen: list[str] = []
        signal.signal(signal.SIGTERM, (lambda *_, seen=seen: seen.append("own")) if own else signal.SIG_DFL)
        at = 0

        def strike(frame: FrameType, event: str, moment: int = moment, seen: list[str] = seen) -> None:
            nonlocal at
            if event == "opcode":
                at += 1
                if at == moment + 1:
                    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
                        seen.append("ended")
                    else:
                        terminate()

        before = sys.gettrace()
        sys.settrace(traced(strike))
        try:
            enter_and_leave(lambda seen=seen: seen.append("stop"))  # type: ignore[misc]
        finally:
            sys.settrace(before)
        if not seen or (own and seen.count("own") != 1):
            swallowed.append((moment, seen))
    assert swallowed == []


@pytest.mark.clause("C-07")
def test_the_applications_own_handler_is_called_once_with_its_arguments() -> None:
    seen: list[Any] = []
    signal.signal(signal.SIGTERM, lambda number, frame: seen.append((number, frame is not None)))
    with stop_on_sigterm(lambda: seen.append("a")), stop_on_sigterm(lambda: seen.append("b")):
        terminate()
    assert seen == ["a", "b", (signal.SIGTERM, True)]


@pytest.mark.clause("C-07")
def test_what_it_raises_is_raised_when_the_work_in_hand_is_finished() -> None:
    def leave(*_: object) -> None:
        sys.exit(3)

    seen: list[str] = []
    signal.signal(signal.SIGTERM, leave)

    def work() -> None:
        with stop_on_sigterm(lambda: seen.append("stop")):
            terminate()
            seen.append("finished")

    with pytest.raises(SystemExit) as caught:
        work()
    assert seen == ["stop", "finished"]
    assert caught.value.code == 3
    assert signal.getsignal(signal.SIGTERM) is leave


@pytest.mark.clause("C-07")
def test_an_error_of_the_block_stays_visible_behind_it() -> None:
    def leave(*_: object) -> None:
        sys.exit(3)

    signal.signal(signal.SIGTERM, leave)

    def work() -> None:
        with stop_on_sigterm(lambda: None):
            terminate()
            raise RuntimeError("of the handler")

    with pytest.raises(SystemExit) as caught:
        work()
    assert repr(caught.value.__context__) == "RuntimeError('of the handler')"


def test_a_handler_installed_inside_the_block_is_kept() -> None:
    def later(*_: object) -> None: ...

    with stop_on_sigterm(lambda: None):
        signal.signal(signal.SIGTERM, later)
    assert signal.getsignal(signal.SIGTERM) is later


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL], ids=["ignored", "default"])
def test_ignored_or_default_it_only_stops(handler: signal.Handlers) -> None:
    seen: list[str] = []
    signal.signal(signal.SIGTERM, handler)
    with stop_on_sigterm(lambda: seen.append("stop")):
        terminate()
    assert seen == ["stop"]
    assert signal.getsignal(signal.SIGTERM) is handler
