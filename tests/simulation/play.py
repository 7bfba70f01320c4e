"""Plays schedules by their seed: everything in a schedule follows from that number."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from tempfile import TemporaryDirectory

from conquiet.local import LAST_EXCEPTIONS
from tests.simulation.jobs import play_jobs
from tests.simulation.local import play_local
from tests.simulation.played import Played
from tests.simulation.reconciling import play_reconciling
from tests.simulation.sqlite_store import SqliteInMemory, SqliteOnDisk, looking_seldom


def play(seed: int) -> Played:
    """Play the schedule of this seed. Most are of the job store; a few of what is slower or smaller."""
    chance = random.Random(seed)
    if seed % 200 == 100:
        return play_reconciling(seed, chance)
    if seed % 200 == 50:
        return play_transactions(seed, chance)
    if seed % 40 == 7:
        return play_sqlite(seed, chance)
    if seed % 10 == 5:
        return play_local(seed, chance)
    return play_jobs(seed, chance)


def play_sqlite(seed: int, chance: random.Random) -> Played:
    with looking_seldom():
        return play_jobs(seed, chance, SqliteInMemory, "jobs on SQLite")


def play_transactions(seed: int, chance: random.Random) -> Played:
    with looking_seldom(), TemporaryDirectory(prefix="conquiet-simulation-") as folder:
        backend = partial(SqliteOnDisk, f"{folder}/jobs.db")
        return play_jobs(seed, chance, backend, "jobs in transactions", in_transactions=True)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the log: a simulation produces thousands of errors a second."""
    log = logging.getLogger("conquiet")
    level, remembered = log.level, LAST_EXCEPTIONS[:]
    log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        log.setLevel(level)
        LAST_EXCEPTIONS[:] = remembered
