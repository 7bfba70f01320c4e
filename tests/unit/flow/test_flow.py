from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from conquiet.errors import AsyncCallableError, CallTimeoutError, FlowError
from conquiet.flow import (
    Beside,
    Call,
    Cancellation,
    Cancelled,
    Child,
    Flow,
    Signal,
    Sleep,
    join,
    kept,
    original,
    run,
    run_async,
    shielded,
)
from conquiet.flow.threads import THREADS, Threads
from conquiet.testing import ManualClock, VirtualDriver

Drive = Callable[[Flow[Any]], Any]
DRIVERS: dict[str, Drive] = {
    "thread": run,
    "asyncio": lambda flow: asyncio.run(run_async(flow)),
    "virtual": lambda flow: VirtualDriver().run(flow),
}


@pytest.fixture(params=DRIVERS)
def drive(request: pytest.FixtureRequest) -> Drive:
    return DRIVERS[request.param]


def fail(error: BaseException) -> Any:
    raise error


def test_a_flow_gets_what_its_calls_give_and_returns(drive: Drive) -> None:
    def flow() -> Flow[int]:
        one = yield Call(lambda: 1)
        try:
            yield Call(fail, ValueError("two"))
        except ValueError as error:
            return one + len(str(error))
        return 0

    assert drive(flow()) == 4


def test_what_a_flow_raises_comes_out(drive: Drive) -> None:
    def flow() -> Flow[None]:
        yield Sleep(0)
        yield Call(fail, KeyError("gone"))

    with pytest.raises(KeyError, match="gone"):
        drive(flow())


def test_stop_iteration_from_a_call_is_not_the_end_of_the_flow(drive: Drive) -> None:
    def flow() -> Flow[str]:
        try:
            yield Call(next, iter(()))
        except StopIteration:
            return "caught"
        return "missed"

    assert drive(flow()) == "caught"


@pytest.mark.parametrize("error", [StopIteration("nothing left"), GeneratorExit("closed")], ids=repr)
def test_what_means_something_to_generators_comes_out_as_it_was_after_the_cleanup(
    drive: Drive, error: BaseException
) -> None:
    cleaned: list[str] = []
    seen: list[BaseException] = []

    def inner() -> Flow[None]:
        try:
            yield Call(fail, error)
        except BaseException as raised:
            seen.append(original(raised))
            cleaned.append((yield Call(lambda: "inner", shield=True)))
            raise

    def outer() -> Flow[None]:
        try:
            yield from shielded(inner())
        finally:
            yield Sleep(0)
            cleaned.append("outer")

    with pytest.raises((type(error), RuntimeError)) as caught:
        drive(outer())
    # A coroutine cannot raise StopIteration: that is a rule of Python. What was raised is the cause.
    assert error in (caught.value, caught.value.__cause__)
    assert type(caught.value) is type(error) or "coroutine raised StopIteration" in str(caught.value)
    assert (cleaned, seen) == (["inner", "outer"], [error])


@pytest.mark.parametrize("error", [StopIteration("nothing left"), GeneratorExit("closed")], ids=repr)
@pytest.mark.parametrize("ending", ["joined", "read", "not looked at", "of a grandchild"])
def test_they_come_out_of_the_parent_of_the_flow_as_they_were(
    drive: Drive, error: BaseException, ending: str
) -> None:
    def failing() -> Flow[None]:
        yield Call(fail, error)

    def parent(flow: Flow[None], how: str = ending) -> Flow[None]:
        child = yield Beside(flow)
        yield Sleep(None, child.finished)
        if how == "joined":
            yield from join(child)
        elif how == "read":
            child.result()

    flow = failing()
    if ending == "of a grandchild":
        flow = parent(flow, "joined")
    with pytest.raises((type(error), RuntimeError)) as caught:
        drive(parent(flow))
    assert error in (caught.value, caught.value.__cause__)
    assert type(caught.value) is type(error) or "coroutine raised StopIteration" in str(caught.value)


def test_a_stop_iteration_of_the_flow_itself_is_a_bug_of_the_flow(drive: Drive) -> None:
    def flow() -> Flow[None]:
        yield Sleep(0)
        next(iter(()))

    with pytest.raises(RuntimeError, match="generator raised StopIteration"):
        drive(flow())


def test_what_is_no_effect_is_said_inside_the_flow(drive: Drive) -> None:
    def flow() -> Flow[None]:
        yield "nonsense"  # type: ignore[misc]

    with pytest.raises(FlowError, match="'nonsense', which is not an effect"):
        drive(flow())


def test_children_are_cancelled_and_joined_when_the_flow_ends(drive: Drive) -> None:
    ended = []

    def child() -> Flow[None]:
        try:
            yield Sleep(None)
        finally:
            yield Sleep(0, shield=True)
            ended.append("child")

    def flow() -> Flow[None]:
        yield Beside(child())
        yield Sleep(0.001)

    drive(flow())
    assert ended == ["child"]


def test_a_childs_failure_nobody_looked_at_is_raised(drive: Drive) -> None:
    def child() -> Flow[None]:
        yield Call(fail, ValueError("unseen"))

    def flow(end: BaseException | None) -> Flow[None]:
        beside: Child[None] = yield Beside(child(), name="the child")
        yield Sleep(None, beside.finished)
        if end:
            raise end

    with pytest.raises(ValueError, match="unseen"):
        drive(flow(None))
    with pytest.raises(KeyError) as caught:
        drive(flow(KeyError("own")))
    assert caught.value.__notes__ == ["the child beside it failed too: ValueError: unseen"]


def test_join_gives_the_childs_result(drive: Drive) -> None:
    def child() -> Flow[int]:
        yield Sleep(0.001)
        return 7

    def flow() -> Flow[int]:
        beside: Child[int] = yield Beside(child())
        return (yield from join(beside))

    assert drive(flow()) == 7


def test_a_keepers_failure_is_data_and_does_not_stop_the_main_flow(drive: Drive) -> None:
    failed = Signal()

    def keeper() -> Flow[None]:
        try:
            yield Call(fail, ConnectionError("no heartbeat"))
        finally:
            failed.set()

    def main() -> Flow[str]:
        yield Sleep(None, failed)
        return "done"

    outcome = drive(kept(main(), keeper()))
    assert outcome.value == "done"
    assert repr(outcome.keeper_failure) == "ConnectionError('no heartbeat')"


def test_a_signal_wakes_a_sleeper_and_a_set_one_never_lets_it_sleep(drive: Drive) -> None:
    go = Signal()

    def child() -> Flow[None]:
        yield Call(go.set)

    def flow() -> Flow[list[bool]]:
        yield Beside(child())
        seen = [(yield Sleep(60, go)), (yield Sleep(60, go))]
        go.clear()
        seen.append((yield Sleep(0.001, go)))
        return seen

    assert drive(flow()) == [True, True, False]


def test_each_request_to_cancel_is_delivered_once() -> None:
    def flow(cancel: Cancellation) -> Flow[str]:
        cancel.request()
        try:
            yield Sleep(0)
        except Cancelled:
            yield Sleep(0)  # the request has been delivered: an unshielded effect works again
            return "cleaned up"
        return "never cancelled"

    for drive in (
        lambda c: run(flow(c), cancel=c),
        lambda c: asyncio.run(run_async(flow(c), cancel=c)),
        lambda c: VirtualDriver().run(flow(c), cancel=c),
    ):
        assert drive(Cancellation()) == "cleaned up"


def test_cancel_interrupts_a_thread_in_its_sleep() -> None:
    cancel = Cancellation()
    clock = ManualClock()
    seen: list[str] = []

    def flow() -> Flow[None]:
        try:
            yield Sleep(None)
        except Cancelled:
            seen.append("cancelled")
            raise

    def body() -> None:
        with pytest.raises(Cancelled):
            run(flow(), cancel=cancel, clock=clock)

    thread = threading.Thread(target=body)
    thread.start()
    clock.wait_for_sleepers(1)
    cancel.request()
    thread.join(10)
    assert seen == ["cancelled"]


def test_a_thread_sleeps_by_the_clock_it_is_given() -> None:
    clock = ManualClock()

    def flow() -> Flow[float]:
        yield Sleep(3600)
        return (yield Call(clock.monotonic))

    ended: list[float] = []
    thread = threading.Thread(target=lambda: ended.append(run(flow(), clock=clock)))
    thread.start()
    clock.wait_for_sleepers(1)
    clock.advance(3600)
    thread.join(10)
    assert ended == [3600.0]


async def _settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_task_cancel_reaches_a_call_in_progress_and_cleanup_is_shielded() -> None:
    seen: list[str] = []

    async def work() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            seen.append("call cancelled")
            raise

    async def release() -> None:
        await _settle()
        seen.append("released")

    def flow() -> Flow[None]:
        try:
            yield Call(work)
        finally:
            yield Call(release, shield=True)
            seen.append("after cleanup")
            yield Sleep(0)  # the second request, pending since the shielded call, is raised here
            seen.append("never")

    async def main() -> None:
        task = asyncio.create_task(run_async(flow()))
        await _settle()
        task.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()  # while `release` runs
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert seen == ["call cancelled", "released", "after cleanup"]


def test_task_cancel_between_effects_lands_at_the_next_one() -> None:
    def flow() -> Flow[str]:
        task = asyncio.current_task()
        assert task is not None
        yield Call(task.cancel)
        try:
            yield Call(lambda: "must not run")
        except Cancelled:
            return "at the next effect"
        return "lost"

    async def main() -> str:
        return await run_async(flow())

    assert asyncio.run(main()) == "at the next effect"


def test_a_task_that_was_cancelled_before_can_still_drive_its_cleanup() -> None:
    async def main() -> str:
        def flow() -> Flow[str]:
            yield Sleep(0)
            return "clean"

        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            return await run_async(flow())
        return ""

    async def outer() -> str:
        task = asyncio.create_task(main())
        await asyncio.sleep(0)
        task.cancel()
        return await task

    assert asyncio.run(outer()) == "clean"


def test_a_coroutine_that_outlives_its_limit_is_late_even_if_it_answers() -> None:
    async def stubborn() -> str:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            return "late"
        return ""

    def flow() -> Flow[None]:
        yield Call(stubborn, timeout=0.001)

    with pytest.raises(CallTimeoutError, match=r"stubborn ran past its limit of 0.001 s"):
        asyncio.run(run_async(flow()))


def test_a_timeout_of_the_calls_own_is_left_as_it_is(drive: Drive) -> None:
    def flow() -> Flow[None]:
        yield Call(fail, TimeoutError("my own"), timeout=60)

    with pytest.raises(TimeoutError, match="my own") as caught:
        drive(flow())
    assert not isinstance(caught.value, CallTimeoutError)


def test_a_coroutine_function_on_the_thread_driver_is_said_not_dropped() -> None:
    async def fetch() -> None: ...

    def flow() -> Flow[None]:
        yield Call(fetch)

    with pytest.raises(AsyncCallableError, match=r"fetch returned a coroutine, which cannot be awaited"):
        run(flow())


def test_ctrl_c_in_a_thread_sleep_goes_through_the_flow() -> None:
    seen: list[str] = []

    def flow() -> Flow[None]:
        try:
            yield Sleep(30)
        except KeyboardInterrupt:
            seen.append("rolled back")
            raise

    timer = threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        run(flow())
    timer.join()
    assert seen == ["rolled back"]


def test_an_interrupt_between_two_steps_is_thrown_into_the_flow_not_lost_with_it() -> None:
    """The exception is raised in the driver's own code, just after the flow has yielded."""
    import sys

    seen: list[str] = []

    def flow() -> Flow[str]:
        try:
            yield Call(lambda: None)
        except KeyboardInterrupt:
            seen.append("told")
            yield Call(lambda: None, shield=True)
            raise
        return ""

    fired = False

    def trace(frame: Any, event: str, arg: Any) -> Any:
        nonlocal fired
        if event == "return" and frame.f_code.co_name == "resume" and not fired:
            fired = True
            raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        with pytest.raises(KeyboardInterrupt):
            run(flow())
    finally:
        sys.settrace(None)
    assert seen == ["told"]


def test_context_variables_reach_children_and_do_not_leak_back(drive: Drive) -> None:
    var: contextvars.ContextVar[str] = contextvars.ContextVar("var", default="unset")

    def child() -> Flow[str]:
        seen = yield Call(var.get)
        yield Call(var.set, "changed by child")
        return seen

    def flow() -> Flow[tuple[str, str]]:
        yield Call(var.set, "from parent")
        beside: Child[str] = yield Beside(child())
        seen = yield from join(beside)
        return seen, (yield Call(var.get))

    if drive is not DRIVERS["virtual"]:  # it has one thread and one context for all flows
        assert contextvars.copy_context().run(drive, flow()) == ("from parent", "from parent")


def test_virtual_time_jumps_and_a_deadlock_is_named() -> None:
    driver = VirtualDriver()

    def flow() -> Flow[float]:
        yield Sleep(86_400)
        return (yield Call(driver.clock.monotonic))

    assert driver.run(flow()) == 86_400

    def stuck() -> Flow[None]:
        yield Sleep(None, Signal())

    with pytest.raises(FlowError, match="wait for something that will not happen: main"):
        driver.run(stuck())


def test_the_virtual_driver_explores_orders_by_choice() -> None:
    def order(choose: Callable[[int], int]) -> list[str]:
        seen: list[str] = []

        def child(name: str) -> Flow[None]:
            yield Sleep(0)
            seen.append(name)

        def flow() -> Flow[None]:
            a = yield Beside(child("a"))
            b = yield Beside(child("b"))
            c = yield Beside(child("c"))
            for beside in (a, b, c):
                yield from join(beside)

        VirtualDriver(choose=choose).run(flow())
        return seen

    assert order(lambda n: 0) == order(lambda n: 0) == ["a", "b", "c"]
    assert order(lambda n: n - 1) != ["a", "b", "c"]


def test_threads_are_used_again_and_end_when_idle() -> None:
    threads = Threads(idle_seconds=0.05)
    done = threading.Semaphore(0)
    workers: list[threading.Thread] = []

    def job() -> None:
        workers.append(threading.current_thread())
        done.release()

    for _ in range(5):
        threads.start(job, "job")
        assert done.acquire(timeout=10)
        while not threads._idle:
            workers[-1].join(0.001)
    assert threads.created == 1
    workers[0].join(10)
    assert not workers[0].is_alive()
    threads.start(job, "job")
    assert done.acquire(timeout=10)
    assert threads.created == 2


def test_a_forked_child_starts_threads_of_its_own() -> None:
    ready = threading.Event()
    THREADS.start(ready.set, "before fork")
    assert ready.wait(10)
    pid = os.fork()
    if pid == 0:
        in_child = threading.Event()
        THREADS.start(in_child.set, "after fork")
        os._exit(0 if in_child.wait(10) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_request_from_outside_interrupts_a_wait_and_leaves_no_mark_on_the_task() -> None:
    cancel = Cancellation()

    async def wait_for_ever() -> None:
        await asyncio.get_running_loop().create_future()

    def flow() -> Flow[str]:
        try:
            yield Call(wait_for_ever)
        except Cancelled:
            return "interrupted"
        return ""

    async def main() -> tuple[str, int]:
        asyncio.get_running_loop().call_soon(cancel.request)
        ended = await run_async(flow(), cancel=cancel)
        task = asyncio.current_task()
        assert task is not None
        return ended, task.cancelling()

    assert asyncio.run(main()) == ("interrupted", 0)


def test_a_request_during_the_last_shielded_effect_gives_the_result_and_then_cancels_the_caller() -> None:
    inside = asyncio.Event()

    async def commit() -> str:
        inside.set()
        await _settle()
        return "committed"

    def flow() -> Flow[str]:
        return (yield Call(commit, shield=True))

    seen: list[str] = []

    async def caller() -> None:
        seen.append(await run_async(flow()))
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            seen.append("cancelled after it")
            raise

    async def main() -> None:
        task = asyncio.create_task(caller())
        await inside.wait()
        task.cancel()
        await asyncio.wait([task], timeout=10)
        assert task.cancelled()

    asyncio.run(main())
    assert seen == ["committed", "cancelled after it"]


def test_a_request_that_a_call_swallowed_is_delivered_at_the_next_effect() -> None:
    inside = asyncio.Event()

    async def deaf() -> str:
        inside.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            return "went on"
        return ""

    def flow() -> Flow[str]:
        first = yield Call(deaf)
        try:
            yield Sleep(None)
        except Cancelled:
            return f"{first}, then cancelled"
        return ""

    async def main() -> str:
        task = asyncio.create_task(run_async(flow()))
        await inside.wait()
        task.cancel()
        return await asyncio.wait_for(task, 10)

    assert asyncio.run(main()) == "went on, then cancelled"


def test_a_signal_that_is_clear_again_has_still_woken_its_sleeper() -> None:
    clock = ManualClock()
    signal_ = Signal()
    woken: list[bool] = []

    def flow() -> Flow[bool]:
        return (yield Sleep(None, signal_))

    thread = threading.Thread(target=lambda: woken.append(run(flow(), clock=clock)))
    thread.start()
    clock.wait_for_sleepers(1)
    signal_.set()
    signal_.clear()
    thread.join(10)
    assert woken == [True]


def test_a_child_cancelled_from_outside_before_its_first_step_does_not_hang_its_parent() -> None:
    def child() -> Flow[None]:
        yield Sleep(None)

    def flow() -> Flow[str]:
        beside: Child[None] = yield Beside(child(), name="early")
        for task in asyncio.all_tasks():
            if task.get_name() == "conquiet early":
                task.cancel()
        yield Sleep(None, beside.finished)
        return "told"

    async def main() -> str:
        return await asyncio.wait_for(run_async(flow()), 10)

    assert asyncio.run(main()) == "told"


def test_children_that_are_over_are_not_kept() -> None:
    from conquiet.flow.steps import Steps

    def flow() -> Flow[None]:
        yield Sleep(0)

    steps = Steps(flow())
    for _ in range(1000):
        child: Child[None] = Child("short")
        child.finish(None, None)
        steps.adopt(child)
    assert len(steps._children) <= 64
    while steps.resume():
        pass
