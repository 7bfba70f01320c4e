"""Reads a history once, line by line, then judges each id; the rules are in `conquiet.verify.history`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

from conquiet.verify.history.event import PHASES, Event, read_events
from conquiet.verify.history.holds import Found, Hold, HolderCall, judge_holds
from conquiet.verify.history.verdict import Counts, Verdict, Violation

__all__ = ["check"]

_DELIVER = frozenset(("deliver", "claim"))
_FINAL = frozenset(("ack", "bury", "discard"))
_SETTLE = _FINAL | {"nack", "release", "heartbeat"}


def check(
    source: str | os.PathLike[str] | Iterable[Event], *, drained: bool = True, fenced: bool = False
) -> Verdict:
    """Judge a history: a file, or its events in order.

    `drained`: the run continued until nothing was left, so everything enqueued must be handled and acknowledged.
    `fenced`: holders are lease tokens; each is issued once, and a stale one must be refused.
    """
    if not isinstance(source, str | os.PathLike):
        source = list(source)
    reading = _Reading(fenced)
    for number, event in _numbered(source):
        reading.note(number, event)
    found = reading.judge(drained)
    wanted = {line for _, _, _, lines in found for line in lines}
    texts = _texts(source, wanted) if wanted else {}
    violations = [
        Violation(kind, id, message, tuple(texts[line] for line in sorted({*lines})))
        for kind, id, message, lines in found
    ]
    return Verdict(violations, reading.counts)


class _Item:
    """What is known about one id. Numbers are lines; 0 means not seen."""

    __slots__ = (
        "calls",
        "current",
        "enqueued",
        "enqueued_maybe",
        "final",
        "final_at",
        "handled",
        "holds",
    )

    def __init__(self) -> None:
        self.enqueued = 0
        self.enqueued_maybe = 0  # attempts that may have succeeded
        self.holds: list[Hold] = []
        self.current: dict[str | None, Hold] = {}  # the latest hold of each holder
        self.calls: list[HolderCall] = []
        self.handled = 0  # the first handle that was ok
        self.final = 0  # the first ack, bury or discard that was ok
        self.final_at: float | None = None


class _Begun:
    """An operation (on an id, if it is known at its start) whose end has not been seen yet."""

    __slots__ = ("call", "line", "name")

    def __init__(self, line: int, name: str, call: HolderCall | None) -> None:
        self.line = line
        self.name = name
        self.call = call


class _Reading:
    def __init__(self, fenced: bool) -> None:
        self.counts = Counts()
        self._fenced = fenced
        self._items: dict[str, _Item] = {}
        self._begun: dict[tuple[str, str | None], _Begun] = {}
        self._shared: dict[str, _Begun] = {}  # by op: begun without an id, ended with one or many
        self._tokens: dict[str | None, int] = {}
        self._nameless = False  # an enqueue with an unknown id may have happened
        self._found: list[Found] = []

    # Reading, line by line

    def note(self, line: int, event: Event | None) -> None:
        self.counts.events += 1
        if event is None:
            self.counts.torn += 1
        elif event.phase == "invoke":
            self._invoke(line, event)
        elif event.phase in PHASES:
            self._end(line, event)
        else:
            raise ValueError(f"line {line}: a phase is one of {', '.join(PHASES)}, not {event.phase!r}")

    def _invoke(self, line: int, event: Event) -> None:
        key = (event.op, event.id)
        if key in self._begun:
            raise ValueError(f"line {line}: operation {event.op} begins a second time")
        call = None
        if event.id is not None:
            if event.name == "handle":
                self._handling(line, event, event.id)
            elif event.name in _SETTLE:
                call = self._called(line, event, event.id)
            elif event.name == "enqueue":
                self._item(event.id).enqueued_maybe += 1
        self._begun[key] = _Begun(line, event.name, call)

    def _end(self, line: int, event: Event) -> None:
        begun = self._begun.pop((event.op, event.id), None)
        if begun is None:
            begun = self._begun.pop((event.op, None), None) or self._shared.get(event.op)
            if begun is None:
                raise ValueError(f"line {line}: operation {event.op} ends, but its beginning is not recorded")
            self._shared[event.op] = begun
        if begun.name != event.name:
            raise ValueError(f"line {line}: operation {event.op} began as {begun.name}, not {event.name}")
        ok = event.phase == "ok"
        if not ok:
            self._count_unsuccessful(event)
        if event.name == "enqueue":
            self._enqueued(line, event)
        elif event.id is None:
            pass  # a delivery of nothing
        elif begun.call is not None:
            self._returned(line, event, self._item(event.id), begun.call)
        elif ok and event.name in _DELIVER:
            self._delivered(begun.line, line, event, self._item(event.id))
        elif ok and event.name == "handle":
            self.counts.handled += 1
            item = self._item(event.id)
            item.handled = item.handled or line

    def _count_unsuccessful(self, event: Event) -> None:
        if event.phase == "unknown":
            self.counts.unknown += 1
        else:
            self.counts.failed += 1

    def _item(self, id: str) -> _Item:
        item = self._items.get(id)
        if item is None:
            item = self._items[id] = _Item()
        return item

    def _enqueued(self, line: int, event: Event) -> None:
        if event.id is None:
            self._nameless = self._nameless or event.phase == "unknown"
            return
        item = self._item(event.id)
        if event.phase == "fail":
            item.enqueued_maybe -= 1
        elif event.phase == "ok":
            if item.enqueued:
                self._found.append(("enqueued-twice", event.id, "enqueued twice", (item.enqueued, line)))
            item.enqueued = item.enqueued or line

    def _delivered(self, invoked: int, line: int, event: Event, item: _Item) -> None:
        self.counts.delivered += 1
        hold = Hold(event, invoked, line)
        item.holds.append(hold)
        item.current[event.holder] = hold
        if self._fenced:
            first = self._tokens.setdefault(event.holder, line)
            if first != line:
                message = f"the token {event.holder} was issued before"
                self._found.append(("token-reused", event.id, message, (first, line)))

    def _handling(self, line: int, event: Event, id: str) -> None:
        item = self._item(id)
        hold = item.current.get(event.holder)
        if hold is None:
            message = f"{event.holder} handles it, but it was not delivered to it"
            self._found.append(("never-delivered", id, message, (line,)))
        elif hold.given_up:
            kind = "handled-after-ack" if hold.given_up in _FINAL else "handled-after-release"
            message = f"{event.holder} handles it after its own {hold.given_up}"
            lines = (hold.begun, *((item.final,) if item.final else ()), line)
            self._found.append((kind, id, message, lines))
        elif item.final and hold.invoked < item.final:
            self.counts.late_handlers += 1

    def _called(self, line: int, event: Event, id: str) -> HolderCall:
        item = self._item(id)
        hold = item.current.get(event.holder)
        call = HolderCall(event.name, line, hold, item.handled)
        item.calls.append(call)
        if hold is not None:
            hold.calls.append(call)
        return call

    def _returned(self, line: int, event: Event, item: _Item, call: HolderCall) -> None:
        call.outcome, call.at, call.until = event.phase, event.at, event.until
        if event.phase != "ok":
            return
        if call.hold is None and event.holder is not None:
            message = f"{event.name} by {event.holder}, to which it was not delivered"
            self._found.append(("never-delivered", event.id, message, (call.invoked, line)))
        elif call.hold is not None and event.name != "heartbeat":
            call.hold.given_up = event.name
        if event.name in _FINAL and not item.final:
            item.final, item.final_at = line, event.at
            if event.name == "ack":
                self.counts.acked += 1
            else:
                self.counts.buried += 1

    # At the end

    def judge(self, drained: bool) -> list[Found]:
        counts, found = self.counts, self._found
        if not self._items:
            found.append(("empty", None, "the history contains no message or job", ()))
        counts.unknown += len(self._begun)
        self._nameless = self._nameless or any(
            begun.name == "enqueue" and id is None for (_, id), begun in self._begun.items()
        )
        for id, item in self._items.items():
            counts.enqueued += bool(item.enqueued)
            counts.redelivered += max(0, len(item.holds) - 1)
            if item.holds and not item.enqueued and item.enqueued_maybe <= 0 and not self._nameless:
                found.append(("phantom", id, "delivered, but never enqueued", (item.holds[0].begun,)))
            if drained:
                found += _left_over(id, item)
            found += _around_ack(id, item)
            found += judge_holds(id, item.holds, self._fenced)
        return found


def _left_over(id: str, item: _Item) -> Iterator[Found]:
    lines = tuple(line for line in (item.enqueued, *(h.begun for h in item.holds[-1:]), item.handled) if line)
    maybe_final = {s.name for s in item.calls if s.name in _FINAL and s.outcome != "fail"}
    if item.enqueued and not item.handled and not maybe_final & {"bury", "discard"}:
        yield (
            "lost",
            id,
            f"enqueued, delivered {len(item.holds)} times, and never handled with success",
            lines,
        )
    elif (item.enqueued or item.holds) and not maybe_final:
        yield "undrained", id, "never acknowledged", lines


def _around_ack(id: str, item: _Item) -> Iterator[Found]:
    for call in item.calls:
        if call.name == "ack" and not call.handled and call.outcome != "fail":
            lines = (call.invoked, *((item.handled,) if item.handled else ()))
            yield "unhandled-ack", id, "acknowledged before any handling of it had succeeded", lines
    if not item.final:
        return
    for hold in item.holds:
        late = hold.at is not None and item.final_at is not None and hold.at > item.final_at
        if late or hold.invoked > item.final:
            message = f"delivered to {hold.holder} after it was acknowledged"
            yield "delivered-after-ack", id, message, (item.final, hold.invoked, hold.begun)


def _numbered(source: str | os.PathLike[str] | Sequence[Event]) -> Iterator[tuple[int, Event | None]]:
    if isinstance(source, str | os.PathLike):
        return read_events(source)
    return enumerate(source, 1)


def _texts(source: str | os.PathLike[str] | Sequence[Event], wanted: set[int]) -> dict[int, str]:
    """The lines that are evidence, read again: most histories have none, so lines are not kept in memory."""
    return {
        line: f"line {line}: {event.line().decode().strip()}"
        for line, event in _numbered(source)
        if event is not None and line in wanted
    }
