from __future__ import annotations

import os
import threading

import pytest

from conquiet.errors import AbandonedCallError, AbandonedThreadsError, CallTimeoutError
from conquiet.flow import Call, Flow, ThreadCalls, current_fence, run
from conquiet.flow.threads import THREADS


def test_a_call_within_its_limit_gives_its_result_and_its_exception() -> None:
    calls = ThreadCalls()
    assert calls.run(max, (1, 2), 60) == 2
    with pytest.raises(ZeroDivisionError):
        calls.run(divmod, (1, 0), 60)
    assert calls.abandoned_total == 0


def test_calls_with_a_limit_do_not_start_a_thread_each() -> None:
    calls = ThreadCalls()
    calls.run(int, (), 60)
    before = THREADS.created
    for _ in range(200):
        calls.run(int, (), 60)
    # A thread that has answered may not be back on the idle list when the next call comes.
    assert THREADS.created - before <= 3


class Hanging:
    """A call that hangs until it is released, and then tries to act."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.refused = threading.Event()

    def __call__(self) -> None:
        fence = current_fence()
        fence.check()
        self.release.wait(30)
        try:
            fence.check()
        except AbandonedCallError:
            self.refused.set()


def test_an_abandoned_call_is_counted_fenced_and_forgotten_when_it_ends() -> None:
    calls = ThreadCalls()
    call = Hanging()
    with pytest.raises(CallTimeoutError, match=r"Hanging ran past its limit of 0.01 s.*abandoned"):
        calls.run(call, (), 0.01)
    assert (calls.abandoned, calls.abandoned_total) == (1, 1)
    call.release.set()
    assert call.refused.wait(10)
    while calls.abandoned:  # the thread is about to end
        threading.Event().wait(0.001)
    assert calls.abandoned_total == 1


def test_abandoned_calls_are_bounded() -> None:
    calls = ThreadCalls(max_abandoned=2)
    hanging = [Hanging(), Hanging()]
    for call in hanging:
        with pytest.raises(CallTimeoutError):
            calls.run(call, (), 0.005)
    with pytest.raises(AbandonedThreadsError, match=r"2 calls ran past.*int was not started"):
        calls.run(int, (), 60)
    hanging[0].release.set()
    assert hanging[0].refused.wait(10)
    while calls.abandoned > 1:
        threading.Event().wait(0.001)
    assert calls.run(int, (), 60) == 0
    hanging[1].release.set()


def test_a_flow_is_told_of_the_limit_and_goes_on() -> None:
    call = Hanging()

    def flow() -> Flow[str]:
        try:
            yield Call(call, timeout=0.005)
        except CallTimeoutError:
            return (yield Call(lambda: "next", timeout=60))
        return ""

    assert run(flow(), calls=ThreadCalls()) == "next"
    call.release.set()


def test_outside_any_limited_call_the_fence_is_open() -> None:
    current_fence().check()


def test_a_call_inside_an_abandoned_call_is_fenced_too() -> None:
    calls = ThreadCalls()
    inner_is_in, go_on, seen = threading.Event(), threading.Event(), []

    def inner() -> None:
        inner_is_in.set()
        go_on.wait(30)
        seen.append(current_fence().closed)

    def outer() -> None:
        calls.run(inner, (), 60)

    with pytest.raises(CallTimeoutError):
        calls.run(outer, (), 0.05)
    assert inner_is_in.is_set()
    go_on.set()
    while calls.abandoned:
        threading.Event().wait(0.001)
    assert seen == [True]


def test_a_fork_does_not_inherit_the_count_of_hanging_calls() -> None:
    calls = ThreadCalls(max_abandoned=1)
    call = Hanging()
    with pytest.raises(CallTimeoutError):
        calls.run(call, (), 0.005)
    pid = os.fork()
    if pid == 0:
        os._exit(0 if calls.run(int, (), 60) == 0 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    call.release.set()
