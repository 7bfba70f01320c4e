"""Plays schedules until one shows the bug."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.mutants.mutation import Mutant
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


def first_catch(mutant: Mutant) -> Played | None:
    """The first of this many schedules that shows this mutant's own bug, not just any violation."""
    for seed in range(mutant.most_seeds):
        played = RUNS[mutant.run](seed, random.Random(seed))
        if mutant.is_seen_in(played.violations):
            return played
    return None
