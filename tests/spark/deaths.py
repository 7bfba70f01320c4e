"""How drivers die: they kill themselves at a named point, or are killed at a random moment of their work."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from tests.acceptance.fleet import Worker

AT_RANDOM = "random"
OVERLOADED = "Python worker failed to connect back"  # Spark allows a Python process 10 s to start
START_SECONDS = 300.0


def nothing() -> None:
    """The default action when a driver is ready."""


def until_dead(
    driver: Worker,
    fate: str,
    chance: random.Random,
    *,
    at_random: tuple[float, float] = (0.0, 6.0),
    life_seconds: float = 120.0,
    when_ready: Callable[[], object] = nothing,
) -> int | None:
    """Wait for the driver's death, or kill it; returns its exit code. It may also run out of work first."""
    deadline = time.monotonic() + START_SECONDS
    dies_at: float | None = None
    while driver.exit_code() is None:
        now = time.monotonic()
        assert now < deadline, driver.last_words()
        if driver.is_ready() and dies_at is None:
            when_ready()
            dies_at = now + (chance.uniform(*at_random) if fate == AT_RANDOM else life_seconds)
            deadline = dies_at + 1
        if fate == AT_RANDOM and dies_at is not None and now >= dies_at:
            driver.kill()
        time.sleep(0.02)
    driver.close()
    return driver.exit_code()
