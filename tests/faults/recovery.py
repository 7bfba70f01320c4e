"""Measures from a history: how late a lost job was taken over, refusals of former holders, double leases."""

from __future__ import annotations

from pathlib import Path

from conquiet.verify.history import Verdict, read_events

_SETTLES = ("ack", "nack", "release", "bury")


def taken_over_after(history: Path) -> list[float]:
    """For every lease that ran out: how long after its end another worker had the item, in the history's unit."""
    holds: dict[str, tuple[str, float]] = {}  # id to holder and end of the lease
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
    """How many holders the store refused a settle or a heartbeat because they no longer held the lease."""
    settled: set[tuple[str | None, str | None]] = set()
    stale: set[tuple[str | None, str | None]] = set()
    for _, event in read_events(history):
        if event is None or event.name not in (*_SETTLES, "heartbeat"):
            continue
        if event.phase == "ok" and event.name in _SETTLES:
            settled.add((event.id, event.holder))
        elif event.phase == "fail" and event.error is None:  # with an error the store could not be asked
            stale.add((event.id, event.holder))
    return len(stale - settled)  # a heartbeat may come after the holder's own ack


def double_valid_leases(*verdicts: Verdict) -> int:
    """How often two workers held one item at the same moment of the server's clock."""
    return sum(one.kind == "two-holders" for verdict in verdicts for one in verdict.violations)
