"""One schedule of the reconciliation: retry scheduler, in-process queue, workers, breaker, and a database that fails.

The code is real down to SQLAlchemy and SQLite; the threads take turns on a `Stage`. A process is a scheduler, a queue
and its workers; when it dies its queue is lost, and the next one begins with `resume`.
"""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from sqlalchemy import Engine, create_engine, event, select
from sqlalchemy.orm import Session, sessionmaker

from conquiet.clock import Parker, utc
from conquiet.errors import AttemptOrderError, ConquietError, StoreOutcomeUnknownError, StoreUnavailableError
from conquiet.local import CircuitBreakerRegistry, PriorityDelayQueue, QueueSettings, Worker
from conquiet.reconcile import PlatformFetcher, RetryScheduler, SimulatedAdapter, resume, run_reconciliation
from conquiet.reconcile.database import SharedPool, create_tables, translate_errors
from conquiet.reconcile.job import ReconciliationJob
from conquiet.reconcile.models import AffiliateReport, Base, ReportAttempt, ScheduledAttempt
from conquiet.verify.history import Event, Violation, check
from tests.simulation.played import Played
from tests.simulation.stage import Stage
from tests.simulation.world import Killed, Livelock

_STATEMENTS = ("do_execute", "do_executemany", "do_execute_no_params")  # the calls of the driver
INTERVAL, OVERDUE = 1_800.0, 3_600.0
DRAIN_SECONDS = 5 * 86_400.0
ROUNDING = timedelta(microseconds=2)  # the database keeps microseconds, the queue counts in floats


def play_reconciling(seed: int, chance: random.Random) -> Played:
    stage = Stage(chance)
    schedule = ReconcilingSchedule(stage, seed)
    try:
        stage.play()
        schedule.judge_database()
    except Livelock as error:
        schedule.broken("livelock", None, str(error))
    except Exception as error:  # this is what the simulation looks for
        schedule.broken("foreign-error", None, f"a scheduler or worker ended with {error!r}")
    finally:
        schedule.close()
    played = Played(seed, "reconciling", schedule.events)
    played.violations = schedule.found + check(schedule.events).violations
    played.faults = schedule.injected
    played.steps, played.seconds = stage.turns, stage.monotonic()
    return played


class ReconcilingSchedule:
    def __init__(self, stage: Stage, seed: int) -> None:
        chance = stage.chance
        self.stage = stage
        self.chance = chance
        self.events: list[Event] = []
        self.found: list[Violation] = []
        self.injected: Counter[str] = Counter()
        self.fault_rate = chance.choice((0.0, 0.02, 0.1))
        self.calm = not self.fault_rate
        self._dead: set[str] = set()
        self._op = 0
        self._due: dict[str, datetime] = {}
        self._applied: set[str] = set()
        self._handed: Counter[str] = Counter()
        self.sessions = self._sessions()
        self._adapter = SimulatedAdapter(
            seed,
            failure_rate=chance.choice((0.0, 0.3, 0.8)),
            missing_field_rate=chance.choice((0.0, 0.3)),
            unknown_post_rate=chance.choice((0.0, 0.5)),
            latency_seconds=chance.choice((0.0, 1.0, 60.0)),
            clock=stage,
        )
        self.unfinished = 0
        for number in range(chance.randint(1, 4)):
            self._receive(number)
        self._processes = 0
        together = chance.choice((1, 1, 2))
        self.hands_once = self.calm and together == 1  # a second one resumes what the first has in its queue
        for _ in range(together):
            self._start_process()
        stage.spawn(self._operate, "operator", "operator")

    # -- processes -----------------------------------------------------------------------------------------------

    def _start_process(self) -> str:
        self._processes += 1
        group = f"process {self._processes}"
        self.stage.spawn(lambda: self._begin(group), f"{group} main", group)
        return group

    def _begin(self, group: str) -> None:
        """What a service does when it starts: resume what another may have left, then serve."""
        queue = _Queue(self, QueueSettings(max_in_memory=self.chance.choice((1, 3, 100))), self.stage)
        breakers = CircuitBreakerRegistry(3, 300.0, 1, self.stage)
        fetcher = PlatformFetcher({"simulated": self._adapter}, breakers=breakers, clock=self.stage)
        scheduler = RetryScheduler(
            self.sessions,
            queue,
            overdue_seconds=OVERDUE,
            batch_size=self.chance.choice((1, 2, 100)),
            clock=self.stage,
        )
        for number in range(self.chance.randint(1, 2)):
            worker = Worker(queue, lambda job: self._handle(job, fetcher), poll_timeout=5_000.0)
            self.stage.spawn(worker._work, f"{group} worker {number}", group)
        while True:
            try:
                resume(self.sessions, utc(self.stage.time()))
                break
            except StoreUnavailableError:
                self.stage.sleep(10.0)
        scheduler.run(INTERVAL)

    def _operate(self) -> None:
        """Kill processes for a while, then let everything drain, and end."""
        groups = [f"process {number + 1}" for number in range(self._processes)]
        for _ in range(0 if self.calm else self.chance.randint(1, 3)):
            self.stage.sleep(self.chance.random() ** 2 * 3_600)
            group = groups.pop(self.chance.randrange(len(groups)))
            self.note("kill", group)
            self._dead.add(group)
            self.stage.kill(group)
            groups.append(self._start_process())
        self.fault_rate = 0.0
        groups = [group if group not in self._dead else self._start_process() for group in groups]
        end = self.stage.monotonic() + DRAIN_SECONDS
        parker = Parker()
        while self.unfinished and self.stage.monotonic() < end:
            self.stage.wait(parker, INTERVAL)
        for number in range(self._processes):
            self.stage.kill(f"process {number + 1}")

    def _handle(self, job: ReconciliationJob, fetcher: PlatformFetcher) -> None:
        id = _id(job.affiliate_report_id, job.attempt)
        try:
            result = run_reconciliation(
                job.affiliate_report_id,
                fetcher=fetcher,
                session_factory=self.sessions,
                clock=self.stage,
                attempt=job.attempt,
            )
        except AttemptOrderError:
            return  # it was late, and another worker has made the attempt meanwhile
        except ConquietError:
            raise
        except Exception as error:
            self.broken("foreign-error", id, f"a worker was given {error!r}")
            raise
        if not result.applied:
            return
        if id in self._due and utc(self.stage.time()) < self._due[id] - ROUNDING:
            self.broken("claimed-early", id, f"made before it was due, at {self._due[id]}")

    # -- the database --------------------------------------------------------------------------------------------

    def _sessions(self) -> sessionmaker[Session]:
        engine = _engine()
        with engine.begin() as connection:
            for table in reversed(Base.metadata.sorted_tables):
                connection.execute(table.delete())
            connection.exec_driver_sql("DELETE FROM sqlite_sequence")
        for name in _STATEMENTS:
            event.listen(engine, name, self._before_statement)
        return sessionmaker(engine, class_=_Session, info={"schedule": self}, expire_on_commit=False)

    def close(self) -> None:
        for name in _STATEMENTS:
            event.remove(_engine(), name, self._before_statement)

    def _before_statement(self, *_: Any) -> None:
        self.may_fail("statement", sqlite3.OperationalError("database is locked"))

    def may_fail(self, where: str, error: Exception) -> None:
        """Raise a database error, or end this process, here."""
        group = self._group()
        if group in self._dead:
            raise Killed
        if not self.fault_rate or group in ("operator", "nobody") or self.chance.random() >= self.fault_rate:
            return
        if self.chance.random() < 0.7:
            self.note(f"error at {where}", group)
            raise error
        self.note(f"crash at {where}", group)
        self._dead.add(group)
        self.stage.kill(group)
        raise Killed

    def _group(self) -> str:
        actor = self.stage._on
        return "nobody" if actor is None else actor.group

    def _receive(self, number: int) -> None:
        post = f"post {number}"
        truth = self._adapter.truth(post)
        now = utc(self.stage.time())
        with self.sessions() as session:
            report = AffiliateReport(
                affiliate_id="ann",
                platform="simulated",
                post_id=post,
                claimed_views=truth.views,
                claimed_clicks=truth.clicks,
                claimed_conversions=truth.conversions,
                submitted_at=now,
                received_at=now,
            )
            session.add(report)
            session.commit()
            self.write("enqueue", _id(report.id, 1))
        self.unfinished += 1

    def committed(self, rows: list[dict[str, Any]]) -> None:
        """Attempts that are recorded from now on, whether or not their worker gets the answer."""
        for row in rows:
            id = _id(row["report_id"], row["attempt"])
            if id in self._applied:
                self.broken("applied-twice", id, "recorded a second time")
            self._applied.add(id)
            for name in ("deliver", "handle", "ack"):
                self.write(name, id)
            if row["scheduled_retry_at"] is None:
                self.unfinished -= 1
            else:
                following = _id(row["report_id"], row["attempt"] + 1)
                self._due[following] = row["scheduled_retry_at"]
                self.write("enqueue", following)

    def handed(self, job: ReconciliationJob) -> None:
        id = _id(job.affiliate_report_id, job.attempt)
        self._handed[id] += 1
        if self.hands_once and self._handed[id] > 1:
            self.broken("handed-twice", id, "given to a queue again without any fault")

    def judge_database(self) -> None:
        with self.sessions() as session:
            for report in session.scalars(select(AffiliateReport)):
                made = session.scalars(
                    select(ReportAttempt.attempt).where(ReportAttempt.report_id == report.id)
                ).all()
                left = session.scalars(
                    select(ScheduledAttempt.attempt).where(ScheduledAttempt.report_id == report.id)
                ).all()
                if sorted(made) != list(range(1, report.attempts + 1)):
                    self.broken("attempts", str(report.id), f"{report.attempts} counted, {sorted(made)} made")
                if report.finished_at is None:
                    self.broken("undrained", str(report.id), f"not finished after {report.attempts} attempts")
                elif left:
                    self.broken(
                        "left-over", str(report.id), f"finished, and attempts {list(left)} still wait"
                    )

    # -- observations --------------------------------------------------------------------------------------------

    def write(self, name: str, id: str | None) -> None:
        self._op += 1
        actor, at = self.stage.who, self.stage.monotonic()
        for phase in ("invoke", "ok"):
            holder = None if name == "enqueue" else actor
            self.events.append(Event(phase, name, str(self._op), id, holder, at=at))

    def note(self, kind: str, about: str) -> None:
        self.injected[kind] += 1
        self._op += 1
        self.events.append(
            Event("invoke", f"fault: {kind}", str(self._op), None, about, at=self.stage.monotonic())
        )

    def broken(self, kind: str, id: str | None, message: str) -> None:
        self.found.append(Violation(kind, id, message))


class _Queue(PriorityDelayQueue):
    def __init__(self, schedule: ReconcilingSchedule, settings: QueueSettings, clock: Stage) -> None:
        super().__init__(settings, clock)
        self._seen_by = schedule

    def enqueue(self, job: Any, priority: str = "normal", delay_seconds: float = 0.0) -> Any:
        item = super().enqueue(job, priority, delay_seconds)
        self._seen_by.handed(job)
        return item


class _Session(Session):
    """Commits may fail before they are done, and after."""

    def commit(self) -> None:
        schedule: ReconcilingSchedule = self.info["schedule"]
        schedule.may_fail("commit", StoreUnavailableError("simulated: database is locked"))
        rows = self.info.setdefault("recorded", _new_attempts(self)) if self.in_transaction() else []
        super().commit()
        self.info.pop("recorded", None)
        schedule.committed(rows)
        schedule.may_fail("answer to commit", StoreOutcomeUnknownError("simulated: the server went away"))


def _new_attempts(session: Session) -> list[dict[str, Any]]:
    known = session.info["schedule"]._applied
    return [
        {"report_id": row[0], "attempt": row[1], "scheduled_retry_at": row[2]}
        for row in session.execute(
            select(ReportAttempt.report_id, ReportAttempt.attempt, ReportAttempt.scheduled_retry_at)
        ).all()
        if _id(row[0], row[1]) not in known
    ]


@cache
def _engine() -> Engine:
    """One database in memory for all schedules. (A connection that was interrupted is replaced.)

    Its driver's errors are translated as by `open_database`.
    """
    engine = create_engine(
        "sqlite:///file:simulation?mode=memory&cache=shared&uri=true",
        poolclass=SharedPool,
        connect_args={"check_same_thread": False},
    )
    translate_errors(engine, "simulated")
    _ANCHOR.append(engine.connect())  # the database ends with its last connection
    create_tables(engine)
    return engine


_ANCHOR: list[Any] = []


def _id(report_id: int, attempt: int) -> str:
    return f"report {report_id}, attempt {attempt}"
