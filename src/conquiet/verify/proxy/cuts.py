"""The cuts of a campaign: commands in turn, each at every kind of place, at a random byte."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from conquiet.verify.proxy.proxy import Proxy, Side, Strike

__all__ = ["PLACES", "Cutting"]

# How much of a command or its reply passes before the cut, from least to most.
PLACES: dict[str, tuple[Side, float, float]] = {
    "before": ("command", 0.0, 0.0),
    "inside": ("command", 0.05, 0.95),
    "sent": ("command", 1.0, 1.0),
    "unanswered": ("reply", 0.0, 0.0),
    "half answered": ("reply", 0.05, 1.0),
}


_LONGEST = 30.0  # seconds that a reply may take


class Cutting:
    """Cuts connections one after the other until `count` are cut; `words` are proxies and commands to cut at."""

    def __init__(self, words: Sequence[tuple[Proxy, str]], count: int, seed: int) -> None:
        self._words = words
        self._left = count
        self._random = random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cutting")
        self.made: Counter[tuple[str, str]] = Counter()  # by command and place

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    @property
    def count(self) -> int:
        return self.made.total()

    @property
    def by_word(self) -> dict[str, int]:
        """The number of cuts by command."""
        return dict(Counter(word for word, _ in self.made.elements()))

    def within(self, *words: str) -> int:
        return sum(self.by_word.get(word, 0) for word in words)

    @property
    def points(self) -> int:
        """The number of different pairs of command and place."""
        return len(self.made)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        places = list(PLACES)
        # Commands in turn, so that even a short campaign has each as often as it is in `words`; the place changes with
        # every round. The start is random: short campaigns should not always make the same cuts.
        number = self._random.randrange(len(self._words) * len(places))
        while self._left and not self._stop.is_set():
            rounds, turn = divmod(number, len(self._words))
            (proxy, word), place = self._words[turn], places[(rounds + turn) % len(places)]
            number += 1
            side, least, most = PLACES[place]
            strike = proxy.strike(word, side, self._random.uniform(least, most))
            if self._has_struck(proxy, strike):
                self.made[word, place] += 1
                self._left -= 1

    def _has_struck(self, proxy: Proxy, strike: Strike) -> bool:
        deadline = time.monotonic() + 2.0
        while not strike.done.wait(0.05):
            # No client is sending this command: try the next one.
            if (self._stop.is_set() or time.monotonic() > deadline) and proxy.withdraw(strike):
                return False
            if time.monotonic() > deadline + _LONGEST:
                return False  # its connection ended before the reply that should be cut
        return True
