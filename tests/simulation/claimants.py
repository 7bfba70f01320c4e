"""The processes that claim jobs: the worker, the engine over the jobs connector, and a program that calls the store."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from conquiet.connectors.jobs import _Jobs
from conquiet.errors import ConquietError, StaleLeaseError, StoreOutcomeUnknownError, StoreUnavailableError
from conquiet.flow import Cancelled, Child, Flow, Sleep, ThreadCalls
from conquiet.jobs import Job, JobContext, Nack, NewJob
from conquiet.jobs.operations import JobOperations
from conquiet.jobs.worker.execution import Executor
from conquiet.jobs.worker.plan import HandlerPlans
from conquiet.jobs.worker.run import WorkerRun, WorkerSettings
from conquiet.task.loop import ConsumeLoop, Source
from conquiet.task.mixins.policies import (
    BatchPolicy,
    ConcurrencyPolicy,
    ConsumerLoopPolicy,
    ConsumerPolicy,
    ConsumerSteps,
    EmptyQueuePolicy,
    FetchPolicy,
    ProcessPolicy,
    RetryPolicy,
)
from conquiet.task.tasks import ConsumerTask
from conquiet.task.transaction import Transaction
from tests.simulation.faults import biased
from tests.simulation.witness import Witness
from tests.simulation.world import Livelock, Process, World


@dataclass
class Work:
    """What handlers do in this schedule."""

    witness: Witness
    chance: random.Random
    longest: float
    failure_rate: float
    in_transactions: bool = False  # the worker's handlers write their effects in the transaction of the ack

    def do(self, job: Job) -> Flow[None]:
        op = self.witness.begin_handling(job)
        try:
            yield Sleep(self.chance.random() ** 3 * self.longest)
        except Cancelled:
            self.witness.end_handling(op, job, "fail")
            raise
        if self.chance.random() < self.failure_rate:
            self.witness.end_handling(op, job, "fail")
            raise self.chance.choice((ValueError, TimeoutError, Cancelled))("this time")
        self.witness.end_handling(op, job, "ok")

    def do_in_transaction(self, job: Job, context: JobContext) -> Flow[None]:
        """An effect in the store's own database. The job counts as handled when the worker has committed."""
        op = self.witness.begin_handling(job)
        assert job.lease is not None
        token = job.lease.token
        effect = (self.witness.story(job.id, token), self.witness.name_of(token))
        try:
            yield Sleep(self.chance.random() ** 3 * self.longest)
            context.connection.execute("INSERT INTO effects VALUES (?, ?)", effect)
            yield Sleep(self.chance.random() ** 3 * 0.1)
            if self.chance.random() < self.failure_rate:
                raise ValueError("this time")
        except (ValueError, Cancelled, StoreUnavailableError, sqlite3.Error):
            self.witness.end_handling(op, job, "fail")
            raise
        self.witness.in_transaction[token] = op


class Claimant:
    """One process that claims. `live` is its main flow; `stop` asks it to end."""

    child: Child[None]

    def __init__(
        self, world: World, process: Process, operations: JobOperations, work: Work, queues: tuple[str, ...]
    ) -> None:
        self.world = world
        self.process = process
        self.operations = operations
        self.work = work
        self.queues = queues
        self.chance = world.chance

    def live(self) -> Flow[None]:
        raise NotImplementedError

    def stop(self) -> None:
        raise NotImplementedError

    def guarded(self) -> Flow[None]:
        """Run `live`; an error that leaves it must be the package's own."""
        try:
            yield from self.live()
        except Livelock as error:
            self.work.witness.broken("livelock", None, f"{self.process.name}: {error}")
        except ConquietError as error:
            self.work.witness.broken("ended", None, f"{self.process.name} ended with {error!r}")
        except Exception as error:  # this is what the simulation looks for
            self.work.witness.broken("foreign-error", None, f"{self.process.name} let out {error!r}")


class WorkerProcess(Claimant):
    """A JobWorker as `JobWorker.run` builds it, on the process's own clock."""

    def __init__(self, *args: Any, ttl: float, timeout: float | None) -> None:
        super().__init__(*args)
        chance = self.chance
        settings = WorkerSettings(
            self.queues,
            self.process.name,
            chance.randint(1, 3),
            ttl,
            chance.choice((None, None, 0, 1, 3)),
            chance.choice((0.0, 1.0, 30.0)),
        )
        handle, isolation = (
            (self.work.do_in_transaction, "thread") if self.work.in_transactions else (self.work.do, "async")
        )
        executor = Executor(HandlerPlans(handle, timeout), self.operations, isolation)
        self.run = WorkerRun(self.operations, executor, settings, self.process.clock, chance.random)

    def live(self) -> Flow[None]:
        counts = yield from self.run.run(False, False)
        ends = counts.succeeded + counts.failed + counts.released + counts.lost + len(self.run._held)
        if counts.claimed != ends:
            self.work.witness.broken("counts", None, f"{self.process.name}: {counts}")

    def stop(self) -> None:
        self.run.stop()


class EngineProcess(Claimant):
    """The Consumer Engine over the jobs connector, restarted when it ends with an error, as by a supervisor."""

    def __init__(self, *args: Any, ttl: float, timeout: float | None) -> None:
        super().__init__(*args)
        chance = self.chance
        self.dsn = f"simulated://{id(self)}"  # each process notices outages by itself
        self._connector = _SimulatedConnector(self, ttl)
        self._policy = ConsumerPolicy(
            ConsumerLoopPolicy(
                BatchPolicy(chance.randint(1, 3)),
                ConcurrencyPolicy(chance.randint(1, 3)),
                streaming=True,
                transaction_timeout=timeout,
                empty_queue=EmptyQueuePolicy(0.5 * ttl, 2.0, 2.0 * ttl),
            ),
            ConsumerSteps(
                fetch=FetchPolicy(RetryPolicy(chance.randint(1, 3), backoff=0.2)),
                process=ProcessPolicy(RetryPolicy(chance.randint(1, 2), backoff=0.1)),
            ),
        )
        self._loop: ConsumeLoop | None = None
        self._ending = False

    def live(self) -> Flow[None]:
        connector = self._connector
        source = Source(connector.fetch, connector.settled, connector.released)
        while not self._ending:
            self._loop = ConsumeLoop(
                _SimulatedTask(self.work), source, self._policy, self.process.clock, ThreadCalls(), None
            )
            try:
                report = yield from self._loop.run()
            except ConquietError as error:
                report = error.report  # type: ignore[attr-defined]
                yield Sleep(0.1)
            if report.fetched != report.succeeded + report.failed + report.unsettled:
                self.work.witness.broken("counts", None, f"{self.process.name}: {report}")

    def stop(self) -> None:
        self._ending = True
        if self._loop is not None:
            self._loop.stop()


class _SimulatedConnector(_Jobs):
    """`JobConnector` with its keeper running in the simulation instead of on a thread."""

    def __init__(self, engine: EngineProcess, ttl: float) -> None:
        super().__init__(
            engine,
            engine.queues,
            lease_ttl=ttl,
            worker=engine.process.name,
            clock=engine.process.clock,
            random=engine.chance.random,
        )
        self._engine = engine

    def _start_keeper(self, keeper: Flow[None]) -> None:
        self._engine.world.spawn(self._engine.process, keeper, "keeper")


class _SimulatedTask(ConsumerTask):
    def __init__(self, work: Work) -> None:
        self._work = work

    def process_transaction(self, transaction: Transaction) -> Flow[None]:
        return self._work.do(transaction.metadata["job"])


class ProgramProcess(Claimant):
    """A user's own loop around claim and ack. It heartbeats sometimes, forgets jobs, settles late and twice."""

    def __init__(self, *args: Any, ttl: float, timeout: float | None) -> None:
        super().__init__(*args)
        self._ttl = ttl
        self._ending = False

    def live(self) -> Flow[None]:
        while not self._ending:
            try:
                jobs = yield from self.operations.claim(
                    self.queues, self.chance.randint(1, 2), self._ttl, self.process.name
                )
                for job in jobs:
                    yield from self._use(job)
            except StoreUnavailableError:
                jobs = []
            if not jobs:
                yield Sleep(self._ttl)

    def _use(self, job: Job) -> Flow[None]:
        end: Callable[[], Flow[Any]] = lambda: self.operations.ack(job, None)  # noqa: E731
        try:
            yield from self.work.do(job)
        except (ValueError, TimeoutError, Cancelled) as error:
            nack = Nack(job, error)
            end = lambda: self.operations.nack(nack)  # noqa: E731
        how = biased(self.chance, "settle", "heartbeat", "late", "release", "forget", "twice")
        try:
            if how == "heartbeat":
                yield from self.operations.heartbeat(job)
            elif how == "late":
                yield Sleep(self.chance.random() * 2 * self._ttl)
            elif how == "release":
                end = lambda: self.operations.release(job)  # noqa: E731
            elif how == "forget":
                return
            yield from end()
            if how == "twice":
                yield from end()
                self.work.witness.broken(
                    "settled-twice", job.id, f"{self.process.name} settled a lease twice"
                )
        except StaleLeaseError:
            return
        except StoreUnavailableError:
            if self.chance.random() < 0.5:  # a program that tries again, whatever the first result
                yield Sleep(self.chance.random() * self._ttl)
                try:
                    yield from end()
                except (StaleLeaseError, StoreUnavailableError):
                    return

    def stop(self) -> None:
        self._ending = True


class Producer:
    """Enqueues jobs, again where the outcome is unknown, until each is stored."""

    def __init__(self, operations: JobOperations, witness: Witness, chance: random.Random, name: str) -> None:
        self._operations = operations
        self._witness = witness
        self._chance = chance
        self._name = name

    def enqueue(self, queue: str, new: NewJob) -> Flow[None]:
        assert new.id is not None
        again = False
        while True:
            op = self._witness.new_op()
            self._witness.write("invoke", "enqueue", op, new.id, self._name)
            try:
                if again or self._chance.random() < 0.3:
                    yield from self._operations.enqueue_many(queue, [new], "skip", None)
                else:
                    yield from self._operations.enqueue(queue, new, None)
            except StoreOutcomeUnknownError:
                self._witness.write("unknown", "enqueue", op, new.id, self._name)
                again = True
            except StoreUnavailableError:
                self._witness.write("fail", "enqueue", op, new.id, self._name)
            else:
                self._witness.write("ok", "enqueue", op, new.id, self._name)
                return
            yield Sleep(0.2)
