"""Seeded sample reports whose classes are known before anybody judges them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

from conquiet.reconcile import DEFAULT_RULES

__all__ = ["Sample"]

# How often each class comes, and by which share the claim is above what was observed (both ends included).
_CLASSES = {
    "matched": (70, (0.0, DEFAULT_RULES.matched_up_to * 0.9)),
    "discrepancy": (20, (DEFAULT_RULES.matched_up_to * 1.1, DEFAULT_RULES.overclaimed_from * 0.9)),
    "overclaimed": (10, (DEFAULT_RULES.overclaimed_from * 1.1, 2.0)),
}


class Sample:
    """The same reports for the same seed; `truth` counts the classes of those that were made."""

    def __init__(self, reports: int, seed: int = 7) -> None:
        self._reports = reports
        self._random = random.Random(seed)
        self.truth: Counter[str] = Counter()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        names = list(_CLASSES)
        weights = [weight for weight, _ in _CLASSES.values()]
        for number in range(self._reports):
            (name,) = self._random.choices(names, weights)
            observed = self._random.randint(
                10_000, 1_000_000
            )  # large, so that rounding moves nobody across a border
            share = self._random.uniform(*_CLASSES[name][1])
            self.truth[name] += 1
            yield {
                "report_id": f"r-{number:07}",
                "affiliate_id": f"a-{self._random.randrange(200)}",
                "claimed_views": round(observed * (1 + share)),
                "observed_views": observed,
            }
