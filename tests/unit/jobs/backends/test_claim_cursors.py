"""When a worker claims from where it was, and when from the beginning."""

from __future__ import annotations

from conquiet.jobs.backends.postgres.cursors import ClaimCursors
from conquiet.testing import ManualClock


class Claims:
    """A worker that claims without a pause. A claim takes `seconds` from the beginning, or `onward` from the cursors."""

    def __init__(self, seconds: float, onward: float) -> None:
        self.seconds, self.onward = seconds, onward
        self.clock = ManualClock(0.0)
        self.cursors = ClaimCursors(self.clock.monotonic)

    def claim(self) -> bool:
        """Return whether it went on."""
        begun = self.cursors.now()
        if self.cursors.go_on():
            self.clock.advance(self.onward)
            self.cursors.went_on(begun)
            return True
        self.clock.advance(self.seconds)
        self.cursors.began_again(begun)
        return False

    def shares(self, seconds: float) -> tuple[float, float]:
        """Return the parts of the next `seconds` that claims from the beginning and onward take."""
        begun = self.clock.monotonic()
        taken = [0.0, 0.0]
        while (now := self.clock.monotonic()) < begun + seconds:
            went_on = self.claim()
            taken[went_on] += self.clock.monotonic() - now
        return taken[0] / seconds, taken[1] / seconds


def test_the_first_claims_are_from_the_beginning() -> None:
    claims = Claims(0.3, 0.001)
    assert [claims.claim() for _ in range(6)] == [False] * 5 + [True]


def test_slow_claims_from_the_beginning_take_a_small_part_of_the_time() -> None:
    beginning, onward = Claims(0.1, 0.001).shares(60.0)
    assert 0.02 < beginning < 0.07
    assert onward > 0.93


def test_however_slow_they_are_they_come_every_few_seconds() -> None:
    claims = Claims(2.0, 0.001)
    claims.shares(60.0)
    longest, now = 0.0, claims.clock.monotonic()
    for _ in range(15_000):
        if not claims.claim():
            longest, now = max(longest, claims.clock.monotonic() - now), claims.clock.monotonic()
    assert 5.0 < longest < 7.5


def test_where_going_on_is_no_faster_claims_are_from_the_beginning() -> None:
    """A server far away, or one without dead rows. It is tried a few times in five seconds."""
    beginning, onward = Claims(0.010, 0.009).shares(60.0)
    assert onward < 0.02 < 0.98 < beginning


def test_one_slow_claim_changes_nothing() -> None:
    claims = Claims(0.010, 0.001)
    claims.shares(10.0)
    claims.onward = 1.0
    while not claims.claim():
        pass
    claims.onward = 0.001
    assert claims.shares(60.0)[1] > 0.9


def test_ranges_cover_all_levels_but_what_is_behind_the_cursors() -> None:
    cursors = ClaimCursors()
    cursors.move([("a", 5, 17), ("a", 5, 12), ("a", 9, 3), ("c", 0, 8)])
    ranges = cursors.ranges(["a", "b"])
    first, last = -(2**31), 2**31 - 1
    rows = zip(*(ranges[name] for name in ("lanes", "names", "levels", "seqs", "ends")), strict=True)
    assert list(rows) == [
        (1, "a", first, 0, 4),
        (1, "a", 5, 17, 8),
        (1, "a", 9, 3, last),
        (2, "b", first, 0, last),
    ]
