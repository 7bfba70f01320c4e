"""The common part of all drivers: resuming a flow, and ending its children with it."""

from __future__ import annotations

import inspect
from typing import Any, Generic, TypeVar

from conquiet.errors import FlowError
from conquiet.flow.effects import Beside, Call, CarriedExit, Child, Effect, Flow, Sleep, original
from conquiet.redaction import annotate, described

__all__ = ["EFFECTS", "Steps", "unknown_effect"]

EFFECTS = frozenset((Call, Sleep, Beside))

# In the __dict__ of a StopIteration that a call raised. One that a flow raises by itself is a bug of the flow.
_OF_A_CALL = "_conquiet_of_a_call"

T = TypeVar("T")


class Steps(Generic[T]):
    """One flow being driven. The driver sets `value` or `error`, calls `resume`, performs `effect`, and so on.

    Flows are resumed only here, so three traps are handled once: StopIteration means the end only if the flow has
    ended; an interrupt (Ctrl-C) between two steps of the driver is thrown into the suspended flow, which is never
    abandoned; and what a call raises comes out of the flow as it was, also StopIteration and GeneratorExit, which mean
    something else to generators.
    """

    __slots__ = ("_children", "_error", "_flow", "_value", "effect", "error", "value")

    def __init__(self, flow: Flow[T]) -> None:
        self._children: list[Child[Any]] = []
        self._flow = _with_children(flow, self._children)
        self.value: Any = None
        self.error: BaseException | None = None
        self.effect: Effect = None  # type: ignore[assignment]
        self._value: T | None = None
        self._error: BaseException | None = None

    def resume(self) -> bool:
        """Pass `error` or `value` to the flow. Return True if `effect` must be performed, False if the flow ended."""
        error, self.error = self.error, None
        try:
            self.effect = (
                self._flow.send(self.value) if error is None else self._flow.throw(_throwable(error))
            )
        except StopIteration as stop:
            self._value = stop.value
            return False
        except BaseException as raised:
            if inspect.getgeneratorstate(self._flow) is not inspect.GEN_CLOSED:
                raise  # an interrupt outside the flow, which is still suspended: the driver throws it in
            self._error = _as_raised(raised)
            return False
        return True

    def adopt(self, child: Child[Any]) -> None:
        """Register a child, which ends with this flow. Children that ended without an unread failure are dropped."""
        if len(self._children) >= 64:
            self._children[:] = [old for old in self._children if not old.done or old.has_unseen_failure()]
        self._children.append(child)

    def result(self) -> T:
        """Return the flow's value or raise its exception."""
        if self._error is not None:
            error, self._error = (
                self._error,
                None,
            )  # avoids a reference cycle of exception, traceback and frame
            raise error
        return self._value  # type: ignore[return-value]

    def finish(self, child: Child[T]) -> None:
        """Tell the flow that started this one how it ended."""
        child.finish(self._value, self._error)


def _throwable(error: BaseException) -> BaseException:
    if isinstance(error, GeneratorExit):
        return CarriedExit(error)
    if isinstance(error, StopIteration):
        error.__dict__[_OF_A_CALL] = True
    return error


def _as_raised(error: BaseException) -> BaseException:
    """Return what the call raised, here or in a child, instead of what Python made of it in a generator (PEP 479)."""
    cause = error.__cause__ if type(error) is RuntimeError else None  # others may raise when they are asked
    if isinstance(cause, StopIteration) and _OF_A_CALL in cause.__dict__:
        for note in getattr(error, "__notes__", ()):
            annotate(cause, note)
        return cause
    return original(error)


def _with_children(flow: Flow[T], children: list[Child[Any]]) -> Flow[T]:
    """Run `flow`, then end its children."""
    try:
        value = yield from flow
    except BaseException as error:
        for child in (yield from _end(children)):
            if child.failure is not None:
                annotate(error, f"{child.name} beside it failed too: {described(child.failure)}")
        raise
    for child in (yield from _end(children)):
        child.result()
    return value


def _end(children: list[Child[Any]]) -> Flow[list[Child[Any]]]:
    """Cancel and join the children, and return those whose failure was not read."""
    for child in children:
        if not child.done:
            child.cancel()
    joined = [child for child in children if not child.abandoned]
    for child in joined:
        yield Sleep(None, child.finished, shield=True)
    return [child for child in joined if child.has_unseen_failure()]


def unknown_effect(effect: object) -> FlowError:
    return FlowError(f"a flow yielded {effect!r}, which is not an effect (Call, Sleep, Beside)")
