"""Plays schedules until one shows that something is wrong."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.simulation.jobs import play_jobs
from tests.simulation.local import play_local
from tests.simulation.play import play_sqlite, play_transactions
from tests.simulation.played import Played
from tests.simulation.reconciling import play_reconciling

RUNS: dict[str, Callable[[int, random.Random], Played]] = {
    "jobs": play_jobs,
    "sqlite": play_sqlite,
    "transactions": play_transactions,
    "local": play_local,
    "reconciling": play_reconciling,
}


def first_violation(run: str, most_seeds: int) -> Played | None:
    """The first of so many schedules that is broken."""
    for seed in range(most_seeds):
        played = RUNS[run](seed, random.Random(seed))
        if played.violations:
            return played
    return None
