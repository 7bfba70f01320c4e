"""Which cuts a campaign makes: commands in turn, each at every kind of place, the exact byte by chance."""

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

# Where in a command or its reply: none of it has passed, some of it, all of the command.
PLACES: dict[str, tuple[Side, float, float]] = {
    "before": ("command", 0.0, 0.0),
    "inside": ("command", 0.05, 0.95),
    "sent": ("command", 1.0, 1.0),
    "unanswered": ("reply", 0.0, 0.0),
    "half answered": ("reply", 0.05, 1.0),
}


_LONGEST = 30.0  # seconds that the reply to a command may take


class Cutting:
    """Cuts connections through `proxies` one after the other, until `count` are made; `words` name commands."""

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
        """How many there were in each command."""
        return dict(Counter(word for word, _ in self.made.elements()))

    def within(self, *words: str) -> int:
        return sum(self.by_word.get(word, 0) for word in words)

    @property
    def points(self) -> int:
        """How many pairs of command and place there were."""
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
        # Commands in turn, so that even a short campaign has each as often as `words` says; the place moves on by one
        # with every round. Where it begins is chance: a short one should not always make the same cuts.
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
            # Nobody sends such a command at the moment: another one's turn.
            if (self._stop.is_set() or time.monotonic() > deadline) and proxy.withdraw(strike):
                return False
            if time.monotonic() > deadline + _LONGEST:
                return False  # its connection ended before the reply that was to be cut
        return True
