"""Chance that can be repeated: a new seed for every run, printed when the test fails, and fixed by CONQUIET_SEED.

CONQUIET_SEED=123 make test ARGS=tests/…::test_…
"""

from __future__ import annotations

import os
import random
import secrets

import pytest

SEED = "CONQUIET_SEED"


class Chance(random.Random):
    """A generator that knows the seed it was made from."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.seed_used = seed

    def __str__(self) -> str:
        return f"seed {self.seed_used} (again: {SEED}={self.seed_used})"


def new_chance() -> Chance:
    """Chance from the seed in the environment, otherwise from a new one. The seed is printed."""
    given = os.environ.get(SEED)
    chance = Chance(int(given) if given else secrets.randbelow(2**32))
    print(chance)  # pytest shows it if the test fails
    return chance


@pytest.fixture
def chance() -> Chance:
    return new_chance()
