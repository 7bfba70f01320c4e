"""A custom job store, and the suite that checks whether it keeps the guarantees of a job store.

This one is the memory store with a journal of the states of every job, for example for an auditor. A
back end is one class (`conquiet.jobs.backends.Backend`: each method is one atomic step), registered for a DSN scheme;
checks, JSON, retries and errors are the same for every store. The stores of conquiet itself have to pass this suite.

Prints:

    the journal: Ready, InFlight, Failed
    the conformance suite: passed
"""

import os
import sys
from contextlib import redirect_stdout

import pytest

from conquiet.clock import SYSTEM_CLOCK
from conquiet.jobs import JobStore, open_store
from conquiet.jobs.backends import register
from conquiet.jobs.backends.memory import MemoryBackend
from conquiet.testing import ManualClock
from conquiet.testing.store_suite import StoreSuite


class JournalBackend(MemoryBackend):
    def __init__(self, clock) -> None:
        super().__init__(clock)
        self.journal: list[tuple[str, str]] = []

    def insert(self, queue, rows, skip, connection, notify=True):
        inserted = yield from super().insert(queue, rows, skip, connection, notify)
        self.journal += [(job_id, "Ready") for job_id in inserted.ids]
        return inserted

    def claim(self, claim):
        jobs, more = yield from super().claim(claim)
        self.journal += [(job.id, "InFlight") for job in jobs]
        return jobs, more

    def settle(self, settlements, connection, begins=()):
        current = yield from super().settle(settlements, connection, begins)
        self.journal += [(end.job_id, end.state.value) for end in settlements if end.token in current]
        return current


class Stores:
    """Opens stores with the same data for the suite, and lets time pass."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.dsn = f"journal://{len(JOURNALS)}"

    def open(self, **options) -> JobStore:
        return open_store(self.dsn, clock=self.clock, **options)

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)


JOURNALS: dict[str, JournalBackend] = {}


def open_journal(dsn, *, clock, awaits):
    """Return the back end for `dsn`. Its steps never wait, so threads and asyncio (`awaits`) can share it."""
    return JOURNALS.setdefault(dsn, JournalBackend(clock or SYSTEM_CLOCK))


register("journal", open_journal, "journal://name")


class TestJournal(StoreSuite):
    @pytest.fixture
    def stores(self) -> Stores:
        return Stores()


if __name__ == "__main__":
    store = open_store("journal://orders")
    store.enqueue("orders", {"order": 1})
    store.nack(store.claim("orders")[0], "no such order", retryable=False)
    print("the journal:", ", ".join(state for _, state in JOURNALS["journal://orders"].journal))
    with redirect_stdout(sys.stderr):
        code = pytest.main([__file__, "-q", "-c", os.devnull, "-p", "no:cacheprovider"])
    print("the conformance suite:", "passed" if code == 0 else f"failed ({code})")
    sys.exit(code)
