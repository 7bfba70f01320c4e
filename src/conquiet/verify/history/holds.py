"""The holds of one id: who held it when, and whether two held it at the same time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from conquiet.verify.history.event import Event, Phase

__all__ = ["Found", "Hold", "HolderCall", "judge_holds"]

Found = tuple[str, str | None, str, tuple[int, ...]]  # kind, id, message, line numbers


class HolderCall:
    """An ack, nack, release, bury, discard or heartbeat, from its invoke on; unknown until its end is seen."""

    __slots__ = ("at", "handled", "hold", "invoked", "name", "outcome", "until")

    def __init__(self, name: str, invoked: int, hold: Hold | None, handled: int) -> None:
        self.name = name
        self.invoked = invoked
        self.hold = hold  # the latest hold of its holder at that time
        self.handled = handled  # the line of a handle that was ok at that time, or 0
        self.outcome: Phase = "unknown"
        self.at: float | None = None
        self.until: float | None = None


class Hold:
    """One delivery of an id to a holder, and what the holder did with it."""

    __slots__ = ("at", "begun", "calls", "given_up", "holder", "invoked", "until", "version")

    def __init__(self, event: Event, invoked: int, begun: int) -> None:
        self.holder = event.holder
        self.version = event.version
        self.at = event.at
        self.until = event.until
        self.invoked = invoked
        self.begun = begun  # the line that records the delivery
        self.calls: list[HolderCall] = []
        self.given_up: str | None = None  # the name of the call that ended it

    def limit(self) -> float | None:
        """The end of the exclusive hold, with heartbeats."""
        if self.until is None:
            return None
        beats = [s.until for s in self.calls if s.until is not None and s.outcome == "ok"]
        return max([self.until, *beats])

    def may_have_ended_before(self, other: Hold) -> bool:
        """Whether its holder may have given it up before the other holder got it."""
        for call in self.calls:
            if call.name == "heartbeat" or call.outcome == "fail" or call.invoked > other.begun:
                continue
            if call.at is None or other.at is None or call.at <= other.at:
                return True
        return False


def judge_holds(id: str, holds: list[Hold], fenced: bool) -> Iterator[Found]:
    if len(holds) < 2 and not fenced:
        return
    # By the server's time and not by line: a holder may be paused between the delivery and the record of it.
    # (Within one tick of the clock the lines are right: a holder records the delivery before it returns the item.)
    timed = sorted((h for h in holds if h.at is not None), key=lambda h: (h.at, h.begun))
    numbered = sorted((h for h in holds if h.version is not None), key=lambda h: (h.version, h.begun))
    yield from _two_holders(id, timed)
    yield from _versions(id, numbered)
    if fenced:
        in_order = numbered if len(numbered) == len(holds) else timed
        for hold, after in pairwise([*in_order, None]):
            assert hold is not None
            yield from _stale_calls(id, hold, after)


def _two_holders(id: str, timed: list[Hold]) -> Iterator[Found]:
    for hold, after in pairwise(timed):
        assert hold.at is not None
        assert after.at is not None
        limit = hold.limit()
        if limit is None or after.at >= limit or hold.may_have_ended_before(after):
            continue
        yield (
            "two-holders",
            id,
            f"{after.holder} got it at {after.at}, while {hold.holder} held it until {limit}",
            (hold.begun, after.begun),
        )


def _versions(id: str, numbered: list[Hold]) -> Iterator[Found]:
    latest: Hold | None = None  # of the holds with a lower version, the one requested last
    for hold, after in pairwise(numbered):
        latest = hold if latest is None or hold.invoked > latest.invoked else latest
        if hold.version == after.version:
            yield "version", id, f"two holds of version {hold.version}", (hold.begun, after.begun)
        elif after.begun < latest.invoked:
            message = f"version {latest.version} was issued after version {after.version}"
            yield "version", id, message, (after.begun, latest.invoked, latest.begun)
        elif hold.at is not None and after.at is not None and after.at < hold.at:
            message = f"version {hold.version} is from {hold.at}, version {after.version} from {after.at}"
            yield "version", id, message, (hold.begun, after.begun)


def _stale_calls(id: str, hold: Hold, after: Hold | None) -> Iterator[Found]:
    done = [s for s in hold.calls if s.outcome == "ok" and s.name != "discard"]
    for call in done:
        if after is not None and after.begun < call.invoked:
            message = f"{call.name} by {hold.holder} was accepted, but {after.holder} already had it"
            yield "stale-settle", id, message, (hold.begun, after.begun, call.invoked)
    if hold.until is None or any(s.name == "heartbeat" and s.outcome == "unknown" for s in hold.calls):
        return  # the hold may last longer than recorded
    limit = hold.until
    timed = [(s.at, s) for s in done if s.at is not None]
    for at, call in sorted(timed, key=lambda pair: (pair[0], pair[1].invoked)):
        if at > limit:
            message = f"{call.name} by {hold.holder} was accepted at {at}, but its hold ended at {limit}"
            yield "stale-settle", id, message, (hold.begun, call.invoked)
        limit = max(limit, call.until or limit)
