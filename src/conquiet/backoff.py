"""The two delay rules of the package: exponential, and exponential with full jitter."""

from __future__ import annotations

import sys
from collections.abc import Callable

__all__ = ["exponential", "full_jitter"]


def exponential(base: float, multiplier: float, attempt: int, cap: float = 0.0) -> float:
    """`base * multiplier ** attempt`, at most `cap` if that is above 0; `attempt` is 0 after the first failure.

    A power too large for a float gives the cap, or the largest float without a cap: never an error, and never the
    slow arithmetic of huge integers.
    """
    if base <= 0:
        return 0.0
    try:
        delay = base * float(multiplier) ** attempt
    except OverflowError:
        delay = sys.float_info.max
    delay = min(delay, sys.float_info.max)
    return min(delay, cap) if cap > 0 else delay


def full_jitter(base: float, attempt: int, maximum: float, random: Callable[[], float]) -> float:
    """Uniform between 0 and `min(base * 2 ** attempt, maximum)`; `random` gives floats in [0, 1)."""
    return random() * exponential(base, 2.0, attempt, cap=maximum)
