"""Job workers, and their server, killed and paused again and again until every job is done."""

from __future__ import annotations

import math
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from conquiet.embedded import PostgresServer
from conquiet.errors import StoreUnavailableError
from conquiet.jobs import Job, JobState, NewJob, open_store
from conquiet.verify.history import History, Verdict, check
from conquiet.verify.recording.jobs import POINTS, add_unwritten
from tests.acceptance.fleet import Fleet, Worker
from tests.acceptance.jobs.worker import RETRY, Work
from tests.chance import new_chance

AT_RANDOM, PAUSED = "random", "paused"
RELEASING = "releasing"  # a point that only workers told to end reach
SLOTS = ("thread", "async", "thread", "async", "process")
LEASE_SECONDS = 1.0
PAUSE_SECONDS = 2.0
BACKLOG = 400  # how many jobs are enqueued ahead of the workers
STALLED_SECONDS = 60.0
T = TypeVar("T")


@dataclass
class Slot:
    """A place in the fleet, in which one worker follows another."""

    isolation: str
    worker: Worker | None = None
    fate: str | None = None  # how the worker will die: at a point, at a random moment, or not at all
    dies_at: float | None = None
    wakes_at: float | None = None  # while it is paused


@dataclass
class Outcome:
    jobs: list[Job]
    effects: list[int]
    verdict: Verdict
    seconds: float
    unwritten: int
    deaths: Counter[tuple[str, str]] = field(default_factory=Counter)  # by isolation and fate
    pauses: int = 0
    server_kills: int = 0

    @property
    def kills(self) -> int:
        return self.deaths.total()

    @property
    def by_fate(self) -> Counter[str]:
        return sum((Counter({fate: count}) for (_, fate), count in self.deaths.items()), Counter())

    @property
    def by_isolation(self) -> Counter[str]:
        return sum((Counter({kind: count}) for (kind, _), count in self.deaths.items()), Counter())

    @property
    def unfinished(self) -> list[Job]:
        ended = {"failing": JobState.FAILED}
        return [job for job in self.jobs if job.state is not ended.get(job.queue, JobState.SUCCEEDED)]

    @property
    def lost_effects(self) -> int:
        wanted = {job.payload["n"] for job in self.jobs if job.queue == "effect"}
        return len(wanted - set(self.effects))

    @property
    def doubled_effects(self) -> int:
        return len(self.effects) - len(set(self.effects))

    @property
    def doubled_acks(self) -> int:
        return sum(max(0, _outcomes(job).count("succeeded") - 1) for job in self.jobs)

    @property
    def most_failures(self) -> int:
        """How often any job failed with a nack that was accepted."""
        return max(_outcomes(job).count("failed") for job in self.jobs)

    def __str__(self) -> str:
        counts = self.verdict.counts
        expired = sum(job.lease_expiries for job in self.jobs)
        faults = self.kills + self.server_kills
        return "\n  ".join(
            [
                f"{self.kills} kill -9 of workers and {self.server_kills} of the server, {self.pauses} pauses past the "
                f"lease, in a run of {len(self.jobs):,} jobs, {self.seconds:.0f} s",
                f"killed at: {_listed(self.by_fate)}; {_listed(self.by_isolation)}",
                f"delivered again {counts.redelivered}, leases expired {expired}, committed and not written down "
                f"{self.unwritten}, lines torn by a kill {counts.torn}",
                f"jobs lost {len(self.unfinished)}, effects lost {self.lost_effects}, effects twice "
                f"{self.doubled_effects}, acknowledged twice {self.doubled_acks}, failures of one job at most "
                f"{self.most_failures}, violations {len(self.verdict.violations)} in {counts.events:,} events",
                f"none lost in {faults} kills: with 95 % confidence below {3 / faults:.2%} per kill"
                if not self.unfinished and not self.lost_effects
                else "NOT FIT",
            ]
        )


class KillCampaign:
    """`kills` deaths of workers (and `server_kills` of the server) while `jobs` jobs are done."""

    def __init__(
        self,
        dsn: str,
        folder: Path,
        *,
        jobs: int,
        kills: int,
        server: PostgresServer | None = None,
        server_kills: int = 0,
        pauses: int = 0,
        points: Sequence[str] = POINTS,
        executor: str = "Executor",
    ) -> None:
        self._dsn = dsn
        self._folder = folder
        self._jobs = jobs
        self._points = points
        self._executor = executor
        self._server = server
        self._server_kills_left = server_kills
        self._server_kills = server_kills
        self._random = new_chance()
        self._kills = kills
        self._fates = self._planned(kills, pauses)
        self._slots = [Slot(isolation) for isolation in SLOTS]
        self._deaths: Counter[tuple[str, str]] = Counter()
        self._pauses = 0
        self._names = 0

    def run(self, make_effects: Callable[[], object], effects: Callable[[], list[int]]) -> Outcome:
        began = time.monotonic()
        path = self._folder / "history"
        with (
            open_store(self._dsn, retry=RETRY) as self._store,
            History(path) as self._history,
            Fleet(self._folder) as self._fleet,
        ):
            make_effects()
            ids = self._until_drained()
            self._fleet.end()
            unwritten = add_unwritten(self._store, self._history, ids)
            jobs = [job for job_id in ids if (job := self._store.get(job_id)) is not None]
        assert len(jobs) == self._jobs
        verdict = check(path, fenced=True)
        lasted = time.monotonic() - began
        return Outcome(
            jobs, effects(), verdict, lasted, unwritten, self._deaths, self._pauses, self._server_kills
        )

    def _planned(self, kills: int, pauses: int) -> list[str]:
        """How each will die: at a point, at a random moment, or at a random moment after a pause."""
        named = max(min(kills - pauses, len(self._points)), kills * 6 // 10)
        fates = [self._points[n % len(self._points)] for n in range(named)]
        fates += [PAUSED] * pauses + [AT_RANDOM] * (kills - named - pauses)
        self._random.shuffle(fates)
        return fates

    def _until_drained(self) -> list[str]:
        ids: list[str] = []
        progress: Any = None
        moved_at = time.monotonic()
        while True:
            stats = self._patiently(self._store.stats)
            done = sum(queue.succeeded + queue.failed for queue in stats.values())
            if self._is_time_to_enqueue(len(ids), done):
                ids += self._enqueue(min(self._random.randint(20, 120), self._jobs - len(ids)), len(ids))
            through = done == self._jobs
            if through and not self._fates_left() and not self._server_kills_left:
                return ids
            if self._server is not None and self._server_kills_left and self._random.random() < 0.02:
                self._kill_server()
            for slot in self._slots:
                self._tend(slot, through)
            now = (done, self._deaths.total(), self._pauses, self._server_kills_left)
            if now != progress:
                progress, moved_at = now, time.monotonic()
            assert time.monotonic() - moved_at < STALLED_SECONDS, f"stalled at {now}: {stats}, {self._slots}"
            time.sleep(0.02)

    def _is_time_to_enqueue(self, enqueued: int, done: int) -> bool:
        """Never so early that no work is left for the deaths to come; always when there is none."""
        open_until = self._jobs * (self._deaths.total() + len(self._slots) + 1) // (self._kills + 1)
        return enqueued < self._jobs and (enqueued == done or enqueued < min(open_until, done + BACKLOG))

    def _fates_left(self) -> int:
        return len(self._fates) + sum(slot.fate is not None for slot in self._slots)

    def _enqueue(self, count: int, first: int) -> list[str]:
        """Enqueue with ids of our own: whatever the answer, a repetition is safe."""
        ids: list[str] = []
        for queue, every in (("failing", 20), ("effect", 3), ("plain", 1)):
            numbers = [
                n
                for n in range(first, first + count)
                if n % every == 0 and not any(n % other == 0 for other in (20, 3) if other > every)
            ]
            new = [NewJob({"n": n}, id=f"job-{n}") for n in numbers]
            if new:
                names = [job.id or "" for job in new]
                with self._history.operation("enqueue", *names):
                    self._patiently(partial(self._store.enqueue_many, queue, new, on_duplicate="skip"))
                ids += names
        return ids

    def _patiently(self, ask: Callable[[], T]) -> T:
        deadline = time.monotonic() + STALLED_SECONDS
        while True:
            try:
                return ask()
            except StoreUnavailableError:
                assert time.monotonic() < deadline
                # A paused worker may hold SQLite's write lock: only this loop wakes it.
                for slot in self._slots:
                    if slot.worker is not None and slot.wakes_at is not None:
                        self._strike(slot, slot.worker)
                time.sleep(0.05)

    def _kill_server(self) -> None:
        assert self._server is not None
        self._server.kill()
        time.sleep(self._random.uniform(0.0, 1.0))
        self._server.start()
        self._server_kills_left -= 1

    def _tend(self, slot: Slot, out_of_work: bool) -> None:
        """Record the dead, kill or pause workers that are due, start replacements."""
        worker = slot.worker
        if worker is not None:
            if slot.fate in (AT_RANDOM, PAUSED, RELEASING) or out_of_work:
                self._strike(slot, worker, out_of_work)
            code = worker.exit_code()
            if code is None:
                return
            worker.close()
            if (code, slot.fate) == (0, RELEASING):  # no job to give back: another worker gets this fate
                self._fates.insert(0, RELEASING)
            else:
                assert (code, slot.fate is not None) == (-signal.SIGKILL, True), (
                    f"{worker.work} ended by itself, exit code {code}: {worker.last_words()}"
                )
                self._deaths[slot.isolation, slot.fate or ""] += 1
        self._fill(slot)

    def _strike(self, slot: Slot, worker: Worker, out_of_work: bool = False) -> None:
        now = time.monotonic()
        if slot.fate is None or worker.exit_code() is not None or not worker.is_ready():
            return
        if slot.dies_at is None:
            slot.dies_at = now + self._random.uniform(0.0, 0.8)
        if now < slot.dies_at:
            return
        if slot.fate == RELEASING and not out_of_work:
            worker.send(signal.SIGTERM)  # it kills itself when it gives its jobs back
            slot.dies_at = math.inf
        elif slot.fate != PAUSED:
            worker.kill()
            slot.fate = AT_RANDOM  # also a worker that waited for its nth job when there are no more
        elif slot.wakes_at is None:
            worker.send(signal.SIGSTOP)
            slot.wakes_at = now + PAUSE_SECONDS
        elif now >= slot.wakes_at:
            worker.send(signal.SIGCONT)
            self._pauses += 1
            slot.fate, slot.wakes_at = AT_RANDOM, None
            slot.dies_at = now + self._random.uniform(0.2, 1.0)  # time to find its leases lost

    def _fill(self, slot: Slot) -> None:
        self._names += 1
        fate = self._fates.pop() if self._fates else None
        if slot.isolation == "process" and fate == "handling":
            fate = AT_RANDOM  # in this isolation the child handles
        work = Work(
            self._dsn,
            f"{slot.isolation}-{self._names}",
            str(self._folder / "history"),
            isolation=slot.isolation,
            die_at=fate if fate in POINTS else None,
            die_at_nth=self._random.randint(1, {RELEASING: 1, "beating": 3}.get(fate or "", 12)),
            lease_ttl=LEASE_SECONDS,
            executor=self._executor,
        )
        slot.worker, slot.fate = self._fleet.start(work), fate
        slot.dies_at = slot.wakes_at = None


def _outcomes(job: Job) -> list[str]:
    return [attempt.outcome for attempt in job.attempts]


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.most_common()) or "none"
