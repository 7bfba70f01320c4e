"""Which cuts a campaign makes: commands in turn, each at every kind of place, the exact byte by chance."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from tests.faults.proxy import Proxy, Side, Strike

# Where in a command or its reply: none of it has passed, some of it, all of the command.
PLACES: dict[str, tuple[Side, float, float]] = {
    "before": ("command", 0.0, 0.0),
    "inside": ("command", 0.05, 0.95),
    "sent": ("command", 1.0, 1.0),
    "unanswered": ("reply", 0.0, 0.0),
    "half answered": ("reply", 0.05, 1.0),
}


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
        pairs = [(word, place) for place in PLACES for word in self._words]
        self._random.shuffle(pairs)  # a short campaign should not always make the same ones
        number = 0
        while self._left and not self._stop.is_set():
            (proxy, word), place = pairs[number % len(pairs)]
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
        return True
