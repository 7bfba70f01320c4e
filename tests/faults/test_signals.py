"""Workers paused (SIGSTOP) around the end of their lease, stopped (SIGTERM) at every step, and killed (SIGKILL)."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest

from conquiet.jobs import Job, JobContext, JobState, JobStore, JobWorker, NewJob, open_store
from conquiet.verify.history import History, Verdict, check
from conquiet.verify.recording.jobs import RecordedBackend, add_unwritten, record
from tests.campaign import campaign_size
from tests.faults.figures import Record, percentiles
from tests.faults.held import HeldWorker
from tests.faults.recovery import double_valid_leases
from tests.integration.jobs.background import Running, until
from tests.integration.jobs.effects import Effects, insert

TTL = 0.5
PAUSES = (0.98, 1.02, 6.0)  # in leases
AT_A_TIME = 16  # they mostly wait
STORES = ("SQLite", "PostgreSQL")


@dataclass(frozen=True)
class Corner:
    """A case's own store: cases run side by side, and on SQLite a paused worker may hold the only lock."""

    dsn: str
    history: Path


MakeCorner = Callable[[str, str], Corner]


@pytest.fixture
def make_corner(postgres_dsn: str, tmp_path: Path) -> MakeCorner:
    def make(store: str, name: str) -> Corner:
        history = tmp_path / f"{store}-{name}.history"
        if store == "SQLite":
            return Corner(f"sqlite:///{tmp_path / name}.db", history)
        with psycopg.connect(postgres_dsn, autocommit=True) as admin:
            admin.execute(f"CREATE SCHEMA {name}")
        return Corner(f"{postgres_dsn}?options={quote(f'-c search_path={name}')}", history)

    return make


@dataclass(frozen=True)
class Case:
    """A worker held at a point, and another one ready; both write into one history."""

    store: JobStore
    held: HeldWorker
    history: History
    recorded: RecordedBackend
    effects: Effects
    ids: list[str]

    def enqueue(self, queue: str, *numbers: int) -> None:
        ids = [f"job-{n}" for n in numbers]
        with self.history.operation("enqueue", *ids):
            self.store.enqueue_many(
                queue, [NewJob({"n": n}, id=job_id) for n, job_id in zip(numbers, ids, strict=True)]
            )
        self.ids.extend(ids)

    def other(self) -> Running:
        handlers: dict[str, Any] = {"effect": self._effect, "plain": self._plain}
        return Running(JobWorker(self.store, handlers, lease_ttl=TTL, worker="other"))

    def _effect(self, job: Job, context: JobContext) -> None:
        self.recorded.begin_handling(job)
        insert(job, context)

    def _plain(self, job: Job) -> None:
        self.recorded.begin_handling(job)
        self.recorded.end_handling(job)

    def wait_until_done(self) -> None:
        until(lambda: all(job.state is JobState.SUCCEEDED for job in self.jobs()), 60)

    def jobs(self) -> list[Job]:
        jobs = [job for job in map(self.store.get, self.ids) if job is not None]
        assert len(jobs) == len(self.ids)
        return jobs

    def verdict(self) -> Verdict:
        """After the fault: every job is done exactly once, and no two workers held the same job at the same time."""
        jobs = self.jobs()
        assert {job.state for job in jobs} == {JobState.SUCCEEDED}
        for job in jobs:
            assert [a.outcome for a in job.attempts].count("succeeded") == 1
        assert self.effects.numbers() == sorted(job.payload["n"] for job in jobs if job.queue == "effect")
        add_unwritten(self.store, self.history, self.ids)
        verdict = check(self.history.path, fenced=True)
        verdict.raise_if_broken()
        return verdict

    def taken_over(self) -> int:
        """How often a lease was lost on the way."""
        return sum(job.lease_expiries for job in self.jobs())


@contextmanager
def case_at(point: str, corner: Corner, stops: int = 1) -> Iterator[Case]:
    with (
        History(corner.history) as history,
        open_store(corner.dsn, max_lease_expiries=1_000) as store,
        HeldWorker(corner.dsn, point, TTL, history.path, stops) as held,
    ):
        effects = Effects(store)
        held.wait_for("ready")
        yield Case(store, held, history, record(store, history), effects, [])


def paused(corner: Corner, point: str) -> tuple[int, int, int, int]:
    """Pause one worker at `point` in job after job; another one waits beside it.

    Returns the numbers of pauses, jobs taken over, settles refused, and leases that were valid twice.
    """
    with case_at(point, corner) as case:
        for n, share in enumerate(PAUSES):
            case.enqueue("effect", n)
            case.held.wait_for(f"at {point}")
            case.held.send(signal.SIGSTOP)
            with case.other():
                time.sleep(share * TTL)
                case.held.send(signal.SIGCONT)
                case.held.go_on()
                case.wait_until_done()
        case.held.send(signal.SIGTERM)
        case.held.wait_for("stop 1")
        counts = case.held.end()
        return len(PAUSES), case.taken_over(), counts["lost"], double_valid_leases(case.verdict())


@pytest.mark.campaign
@pytest.mark.clause("J-26", "J-12", "J-10")
def test_sigstop_of_a_lease_more_or_less_in_handler_heartbeat_and_commit(
    make_corner: MakeCorner, record_figure: Record
) -> None:
    rounds = campaign_size(10)
    cases = [
        (store, point, n)
        for n in range(rounds)
        for point in ("handler", "heartbeat", "commit")
        for store in STORES
    ]
    with ThreadPoolExecutor(AT_A_TIME) as beside:
        ends = list(beside.map(lambda c: paused(make_corner(c[0], f"{c[1]}_{c[2]}"), c[1]), cases))
    for store in STORES:
        own = [end for end, case in zip(ends, cases, strict=True) if case[0] == store]
        pauses, taken_over, refused, twice = (sum(column) for column in zip(*own, strict=True))
        record_figure(
            f"{store}: SIGSTOP of 0.98, 1.02 and 6 x TTL in handler, heartbeat, commit",
            n=pauses,
            jobs_taken_over=taken_over,
            stale_settles_refused=refused,
            double_valid_leases=twice,
        )
        # A pause of six leases in handler or heartbeat always loses the lease; later settles were refused.
        assert taken_over >= 2 * rounds
        assert refused >= 2 * rounds


STEPS = ("idle", "claim", "handler", "heartbeat", "ack", "commit")


def told_to_end(corner: Corner, point: str, times: int) -> tuple[int, int]:
    """Send a worker `times` SIGTERMs while it is held at `point`; then another one does what is left.

    Returns the numbers of jobs and of leases that were valid twice.
    """
    before_work = point in ("idle", "claim")
    queue = "plain" if point == "ack" else "effect"
    with case_at(point, corner, times) as case:
        if before_work:
            case.held.wait_for(f"at {point}")
        if point != "idle":
            # Both in one call: the worker may hold SQLite's only lock as soon as it has one job.
            case.enqueue(queue, 0, 1)
        if not before_work:
            case.held.wait_for(f"at {point}")
        for number in range(1, times + 1):
            case.held.send(signal.SIGTERM)
            case.held.wait_for(f"stop {number}")
        # Told twice, it ends without waiting for a handler or a settlement. A claim still has to be answered.
        if point != "idle" and (times == 1 or point == "claim"):
            case.held.go_on()
        counts = case.held.end()
        if point == "idle":
            case.enqueue(queue, 0, 1)
        with case.other():
            case.wait_until_done()
        if times == 1 and not before_work:
            assert counts["succeeded"] == 1  # the job that had begun was finished, the other was not begun
        return len(case.ids), double_valid_leases(case.verdict())


@pytest.mark.campaign
@pytest.mark.clause("J-22")
def test_sigterm_once_and_twice_at_each_step(make_corner: MakeCorner, record_figure: Record) -> None:
    cases = [
        (store, point, times, n)
        for n in range(campaign_size(10))
        for point in STEPS
        for times in (1, 2)
        for store in STORES
    ]

    def run(case: tuple[str, str, int, int]) -> tuple[int, int]:
        store, point, times, n = case
        return told_to_end(make_corner(store, f"{point}_{times}_{n}"), point, times)

    with ThreadPoolExecutor(AT_A_TIME) as beside:
        ends = list(beside.map(run, cases))
    for store in STORES:
        own = [end for end, case in zip(ends, cases, strict=True) if case[0] == store]
        jobs, twice = (sum(column) for column in zip(*own, strict=True))
        record_figure(
            f"{store}: SIGTERM once and twice while idle, before claim, in handler, heartbeat, ack, commit",
            n=len(own),
            jobs=jobs,
            double_valid_leases=twice,
        )


def killed(corner: Corner, point: str) -> tuple[float, float]:
    """How long after the end of the lease its job was taken over, by the store's clock, and how long after the kill."""
    with case_at(point, corner) as case:
        case.enqueue("effect", 1)
        case.held.wait_for(f"at {point}")
        with case.other():
            case.held.send(signal.SIGKILL)
            began = time.monotonic()
            case.wait_until_done()
            lasted = time.monotonic() - began
        assert case.taken_over() == 1
        case.verdict()
        first, second = case.jobs()[0].attempts
        return (second.started_at - first.ended_at).total_seconds(), lasted


@pytest.mark.campaign
@pytest.mark.clause("J-22", "J-10")
def test_a_killed_workers_job_is_taken_over_soon_after_its_lease(
    make_corner: MakeCorner, record_figure: Record
) -> None:
    cases = [(point, n) for n in range(campaign_size(40)) for point in ("handler", "commit")]
    for store in STORES:
        with ThreadPoolExecutor(2) as beside:  # it measures time: only a few in parallel
            ends = list(
                beside.map(
                    lambda c, store=store: killed(make_corner(store, f"kill_{c[0]}_{c[1]}"), c[0]), cases
                )
            )
        late, lasted = zip(*ends, strict=True)
        record_figure(
            f"{store}: worker killed, another one waits (lease {TTL} s)",
            n=len(cases),
            taken_over_after_the_lease=percentiles(late),
            done_after_the_kill=percentiles(lasted),
        )
