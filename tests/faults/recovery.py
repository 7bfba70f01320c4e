"""What a history tells: how late a lost job was taken over, how often its former holder was refused, two at once."""

from __future__ import annotations

from pathlib import Path

from conquiet.verify.history import Verdict, read_events

_SETTLES = ("ack", "nack", "release", "bury")


def taken_over_after(history: Path) -> list[float]:
    """For every hold that ran out: how long after its end the item was somebody else's, in the history's unit."""
    holds: dict[str, tuple[str, float]] = {}  # id to holder and end
    late: list[float] = []
    for _, event in read_events(history):
        if event is None or event.phase != "ok" or event.id is None:
            continue
        held = holds.get(event.id)
        if event.name in ("claim", "deliver") and event.at is not None and event.until is not None:
            if held is not None:
                late.append(max(0.0, event.at - held[1]))
            holds[event.id] = (event.holder or "", event.until)
        elif event.name == "heartbeat" and held is not None and event.until is not None:
            if held[0] == event.holder:
                holds[event.id] = (held[0], max(held[1], event.until))
        elif event.name in _SETTLES:
            holds.pop(event.id, None)
    return late


def refused(history: Path) -> int:
    """Holders whom the store refused a settle or a heartbeat, because they were not the holder any more."""
    settled: set[tuple[str | None, str | None]] = set()
    stale: set[tuple[str | None, str | None]] = set()
    for _, event in read_events(history):
        if event is None or event.name not in (*_SETTLES, "heartbeat"):
            continue
        if event.phase == "ok" and event.name in _SETTLES:
            settled.add((event.id, event.holder))
        elif event.phase == "fail" and event.error is None:  # with an error, nobody could be asked
            stale.add((event.id, event.holder))
    return len(stale - settled)  # a heartbeat may come after the holder's own ack


def double_valid_leases(*verdicts: Verdict) -> int:
    """How often two held one item at the same moment of the server's clock."""
    return sum(one.kind == "two-holders" for verdict in verdicts for one in verdict.violations)
