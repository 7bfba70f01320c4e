"""Effects: a flow requests a call, a sleep, or another flow beside it. Nothing else can block.

A *flow* is a generator that holds the logic and yields effects; a *driver* performs them, on a thread
(`run`), on asyncio (`run_async`) or on a virtual clock (`conquiet.testing.VirtualDriver`). The logic is
written once and behaves the same on all three:

    def fetch_with_patience(fetch: Callable[[], list[str]]) -> Flow[list[str]]:
        while not (rows := (yield Call(fetch))):
            yield Sleep(0.5)
        return rows

Rules that every driver keeps:

- Any exception that a call raises (including KeyboardInterrupt) is thrown into the flow where it yielded. Only a
  GeneratorExit, which would close the flow, is thrown as a `CarriedExit`; `original` returns the exception itself.
- A request to cancel throws `Cancelled` into the flow, once: at a sleep or an awaited call in progress, or at
  the next effect. A call that has finished delivers its result first.
- A call that raises `Cancelled` by itself, because something inside it was cancelled, has failed: `Call.interrupted`
  tells it from a request.
- A shielded effect is never interrupted; the request waits for the next effect that is not shielded.
- A flow's children end before it does: they are cancelled and joined, and a child's failure that was not read
  is raised.
"""

from __future__ import annotations

from asyncio import CancelledError as Cancelled
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Generic, TypeVar

from conquiet.redaction import annotate, described

__all__ = ["Beside", "Call", "Cancellation", "Cancelled", "Child", "Effect", "Flow", "Signal", "Sleep"]
__all__ += ["CarriedExit", "Kept", "join", "kept", "original", "shielded"]

T = TypeVar("T")
# `Cancelled` is asyncio's own class, so that a cancellation looks the same on every driver.


class Call:
    """Call `fn(*args)`; on asyncio an awaitable result is awaited. The flow gets the value or the exception.

    `timeout` limits it (`CallTimeoutError`) as far as the driver can: a coroutine is cancelled, a thread is
    abandoned and fenced (`flow.isolation`); if it returns a value after all, that goes to `late`, on any thread.
    `shield` delays a request to cancel until the call is done. If the flow gets `Cancelled` from a call,
    `interrupted` tells whether a request was delivered; otherwise the callee raised it by itself.
    """

    __slots__ = ("args", "fn", "interrupted", "late", "shield", "timeout")

    def __init__(
        self,
        fn: Callable[..., Any | Awaitable[Any]],
        *args: Any,
        timeout: float | None = None,
        shield: bool = False,
        late: Callable[[Any], None] | None = None,
    ) -> None:
        self.fn = fn
        self.args = args
        self.timeout = timeout
        self.shield = shield
        self.late = late
        self.interrupted = False


class Sleep:
    """Wait `seconds` (None: without limit), or until a signal is set. The flow gets True if a signal ended it."""

    __slots__ = ("seconds", "shield", "wake")

    def __init__(self, seconds: float | None, *wake: Signal, shield: bool = False) -> None:
        self.seconds = seconds
        self.wake = wake
        self.shield = shield


class Beside:
    """Start `flow` beside this one; the flow gets its `Child`."""

    __slots__ = ("flow", "name", "shield")

    def __init__(self, flow: Flow[Any], name: str = "beside", shield: bool = False) -> None:
        self.flow = flow
        self.name = name
        self.shield = shield


class CarriedExit(BaseException):
    """A GeneratorExit that a call raised, on its way through a flow: as itself it would close the flow, which could then
    not even clean up. The driver raises the original to its caller."""

    def __init__(self, error: GeneratorExit) -> None:
        super().__init__(*error.args)
        self.error = error


def original(error: BaseException) -> BaseException:
    """Return the exception as the call raised it."""
    return error.error if isinstance(error, CarriedExit) else error


Effect = Call | Sleep | Beside
Flow = Generator[Effect, Any, T]


class Signal:
    """A flag that flows can sleep on. Any thread and any signal handler can set it.

    There is no lock, because a signal handler may call `set`: it raises the flag before it looks for sleepers, and a
    sleeper registers before it looks at the flag, so one of them always sees the other.
    """

    __slots__ = ("_flag", "_wakers")

    def __init__(self) -> None:
        self._flag = False
        self._wakers: dict[Callable[[], None], None] = {}

    def set(self) -> None:
        self._flag = True
        for wake in list(self._wakers):
            wake()

    def clear(self) -> None:
        self._flag = False

    def is_set(self) -> bool:
        return self._flag

    def add_waker(self, wake: Callable[[], None]) -> None:
        """For drivers: call `wake` at every `set`, on the thread that sets it."""
        self._wakers[wake] = None

    def remove_waker(self, wake: Callable[[], None]) -> None:
        self._wakers.pop(wake, None)


class Cancellation:
    """A way to cancel a flow from outside; each request is delivered once."""

    __slots__ = ("_requests", "_signal")

    def __init__(self) -> None:
        self._requests: list[None] = []
        self._signal = Signal()

    def request(self) -> None:
        """Ask the flow to end. Safe from any thread."""
        self._requests.append(None)
        self._signal.set()

    @property
    def pending(self) -> bool:
        return bool(self._requests)

    def take(self) -> bool:
        """For drivers: return whether there is a request to deliver now, and mark it as delivered."""
        try:
            self._requests.pop()
        except IndexError:
            return False
        return True

    def add_waker(self, wake: Callable[[], None]) -> None:
        self._signal.add_waker(wake)

    def remove_waker(self, wake: Callable[[], None]) -> None:
        self._signal.remove_waker(wake)


class Child(Generic[T]):
    """A flow that runs beside another: whether it is done, how it ended, and a way to end it."""

    __slots__ = ("_error", "_looked", "_value", "abandoned", "cancellation", "finished", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.finished = Signal()
        self.cancellation = Cancellation()
        self._value: T | None = None
        self._error: BaseException | None = None
        self._looked = False
        self.abandoned = False

    @property
    def done(self) -> bool:
        return self.finished.is_set()

    def cancel(self) -> None:
        """Ask the child to end; `join` waits until it has."""
        self.cancellation.request()

    def abandon(self) -> None:
        """Let the parent end without the child. The last resort for a thread that cannot be stopped and runs on."""
        self.abandoned = True

    @property
    def failure(self) -> BaseException | None:
        """The child's exception; None if it returned, was cancelled or still runs. Reading it counts as handling it."""
        self._looked = self._looked or self.done
        return None if isinstance(self._error, Cancelled) else self._error

    def result(self) -> T:
        """Return the child's value or raise its exception. Call it only when the child is done."""
        self._looked = True
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]

    def has_unseen_failure(self) -> bool:
        """For drivers: whether the child failed and `failure` was not read."""
        return not self._looked and self._error is not None and not isinstance(self._error, Cancelled)

    def finish(self, value: T | None, error: BaseException | None) -> None:
        """For drivers: record how the child ended."""
        self._value, self._error = value, error
        self.finished.set()


def join(child: Child[T], *, shield: bool = False) -> Flow[T]:
    """Wait for `child` to end, and return its result or raise its exception."""
    yield Sleep(None, child.finished, shield=shield)
    return child.result()


def shielded(flow: Flow[T]) -> Flow[T]:
    """Shield all effects of `flow`: for cleanup that is a flow itself."""
    step: Callable[[Any], Effect] = flow.send
    value: Any = None
    while True:
        try:
            effect = step(value)
        except StopIteration as stop:
            ended: T = stop.value
            return ended
        effect.shield = True
        try:
            value, step = (yield effect), flow.send
        except BaseException as error:
            value, step = error, flow.throw


class Kept(Generic[T]):
    """The result of `kept`: the main flow's value, and the keeper's failure, if any, as data."""

    __slots__ = ("keeper_failure", "value")

    def __init__(self, value: T, keeper_failure: BaseException | None) -> None:
        self.value = value
        self.keeper_failure = keeper_failure


def kept(main: Flow[T], keeper: Flow[Any]) -> Flow[Kept[T]]:
    """Run `main` here with `keeper` (for example a heartbeat) beside it, which ends when `main` does.

    A failing keeper does not stop the main flow: its failure is returned as data or, if the main flow itself
    raises, as a note on that exception. A keeper that must stop the main flow sets a signal.
    """
    child: Child[Any] = yield Beside(keeper, name="keeper")
    try:
        value = yield from main
    except BaseException as error:
        child.cancel()
        yield Sleep(None, child.finished, shield=True)
        if child.failure is not None:
            annotate(error, f"its keeper failed too: {described(child.failure)}")
        raise
    child.cancel()
    yield Sleep(None, child.finished, shield=True)
    return Kept(value, child.failure)
