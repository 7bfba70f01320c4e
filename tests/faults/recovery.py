"""What a history tells about recovery: how late a lost job was taken over, and how often its former holder was refused."""

from __future__ import annotations

from pathlib import Path

from conquiet.testing.history import read_events

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
    """Settles and heartbeats that were refused: their holder was not the holder any more."""
    names = (*_SETTLES, "heartbeat")
    return sum(
        event is not None and event.phase == "fail" and event.name in names
        for _, event in read_events(history)
    )
