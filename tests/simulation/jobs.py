"""One schedule of the job store: its processes, its faults, and whether the history is correct."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from conquiet.errors import StoreUnavailableError
from conquiet.flow import Child, Flow, Sleep, run
from conquiet.jobs import NewJob, RetrySchedule
from conquiet.jobs.backends.memory import MemoryBackend
from conquiet.jobs.operations import JobOperations
from conquiet.payload import DEFAULT_LIMITS
from conquiet.verify.history import Event, Violation, check
from tests.simulation.claimants import Claimant, EngineProcess, Producer, ProgramProcess, Work, WorkerProcess
from tests.simulation.faults import Faults, FaultyBackend
from tests.simulation.played import Played
from tests.simulation.witness import Witness
from tests.simulation.witnessed import WitnessedBackend
from tests.simulation.world import Livelock, Process, World

DRAIN_SECONDS = 600.0  # far beyond every lease and every delay of a schedule


def play_jobs(
    seed: int,
    chance: random.Random,
    make_backend: Any = MemoryBackend,
    kind: str = "jobs",
    *,
    in_transactions: bool = False,
) -> Played:
    world = World(chance)
    schedule = JobSchedule(world, make_backend, in_transactions)
    played = Played(seed, kind)
    try:
        world.play(schedule.run())
    except Livelock as error:
        schedule.witness.broken("livelock", None, str(error))
    played.trace = schedule.witness.events
    verdict = check(played.trace, fenced=True)
    played.violations = schedule.witness.found + verdict.violations
    # Where a process cannot wait for a lock, finding it taken counts as a fault.
    if schedule.calm and not getattr(schedule.backend, "found_locked", 0):
        played.violations += lapsed(played.trace)
    if in_transactions:
        played.violations += schedule.misplaced_effects()
    run(schedule.backend.close())
    played.faults = schedule.faults.injected
    played.steps = world.steps
    played.seconds = world.clock.monotonic()
    return played


def lapsed(trace: list[Event]) -> list[Violation]:
    """Without faults no lease may be lost: a process keeps its jobs, running or waiting for their turn."""
    held: dict[str, str] = {}
    for event in trace:
        if event.phase == "ok" and event.id is not None and event.holder is not None:
            if event.name == "claim":
                if event.id in held:
                    message = f"{held[event.id]} was lost without any fault"
                    return [Violation("lapsed", event.id, message)]
                held[event.id] = event.holder
            elif event.name in ("ack", "nack", "bury", "release"):
                held.pop(event.id, None)
    return []


class JobSchedule:
    def __init__(self, world: World, make_backend: Any, in_transactions: bool) -> None:
        chance = world.chance
        self.world = world
        self.chance = chance
        self.ttl = chance.choice((0.5, 1.0, 2.0, 5.0))
        self.calm = chance.random() < 0.15
        self.retry = RetrySchedule(chance.randint(0, 3), 0.5, chance.choice((1.0, 4.0)))
        self.expiries = chance.choice((20, 20, 20, 20, 20, 2, 4))
        self.queues = chance.choice((("a",), ("a",), ("a", "b")))
        self.witness = Witness(world.clock, self.retry)
        self.faults = Faults(
            world,
            self.witness,
            rate=0.0 if self.calm else chance.choice((0.05, 0.15, 0.3)),
            ttl=self.ttl,
            latency=0.0 if self.calm else chance.choice((0.0, 0.01, 0.2 * self.ttl)),
        )
        backend = self.backend = make_backend(world.clock)
        if hasattr(backend, "statement_fails"):
            backend.statement_fails = self.faults.statement_fails
        self.store = WitnessedBackend(backend, self.witness, expiries=self.expiries < 20, calm=self.calm)
        self.store.watching = self.faults.leave_alone  # type: ignore[method-assign]
        longest = self.ttl * chance.choice((0.1, 1.0, 3.0))
        self.work = Work(self.witness, chance, longest, chance.choice((0.0, 0.2, 0.6)), in_transactions)
        self.timeout = None if self.calm else chance.choice((None, None, self.ttl, 2 * self.ttl))
        kinds: tuple[type[Claimant], ...] = (WorkerProcess, EngineProcess, ProgramProcess)
        if self.calm:
            kinds = kinds[:2]  # the third loses leases on purpose
        self.kinds = [chance.choice(kinds) for _ in range(chance.choice((1, 2, 2, 3)))]
        self.claimants: list[Claimant] = []
        self.started = 0

    def misplaced_effects(self) -> list[Violation]:
        """The effects in the database must be those committed together with an ack, one for every job."""
        stored = sorted(self.backend.effects())
        if stored != sorted(self.witness.effects):
            return [
                Violation("effect", None, f"committed: {self.witness.effects}, in the database: {stored}")
            ]
        twice = [story for story, count in Counter(story for story, _ in stored).items() if count > 1]
        return [Violation("effect", story, "its effect is there twice") for story in twice]

    def run(self) -> Flow[None]:
        chance, world, witness = self.chance, self.world, self.witness
        producer = self._process("producer")
        producing = world.spawn(producer, self._produce(producer, chance.randint(1, 5)))
        for kind in self.kinds:
            self._start(kind)
        if not self.calm:
            yield from self._trouble()
        self.faults.stop()
        yield from self._drain(producer, producing)
        if chance.random() < 0.1:  # an operator retries all failed jobs
            for job_id in list(witness.known):
                yield from self.store.retry(job_id)
            yield from self._drain(producer, producing)
        if chance.random() < 0.3:
            yield Sleep(2 * self.ttl)  # paused processes resume now
        if chance.random() < 0.3:
            yield from self._end()

    def _drain(self, producer: Process, producing: Child[None]) -> Flow[None]:
        """Without faults from here on: all jobs that are left must finish."""
        clock, witness = self.world.clock, self.witness
        end = clock.monotonic() + DRAIN_SECONDS
        while (
            not witness.found
            and clock.monotonic() < end
            and (witness.unfinished or self.faults.on_their_way or (producer.alive and not producing.done))
        ):
            # A process in its last fault may still die: while work is left, a replacement must be running.
            for claimant in list(self.claimants):
                if not claimant.process.alive or claimant.child.done:
                    self.claimants.remove(claimant)
                    self._start(type(claimant))
            over = () if self.faults.on_their_way or not producing.done else (witness.finished,)
            yield Sleep(2 * self.ttl, *over)

    def _trouble(self) -> Flow[None]:
        """Processes die and come back, are paused and resumed, at any moment and not only at a call."""
        chance = self.chance
        for _ in range(chance.randint(1, 4)):
            yield Sleep(chance.random() * self.ttl)
            if not self.faults.rate:
                return
            victim = chance.choice(self.claimants)
            what = chance.choice(("restart", "restart", "kill", "pause", "stop", "person", "nothing"))
            if what == "person":
                yield from self._intervene()
            elif not victim.process.alive:
                if what == "restart":
                    self.claimants.remove(victim)
                    self._start(type(victim))
            elif what == "kill":
                self.faults.note("kill", victim.process, None)
                self.world.kill(victim.process)
            elif what == "pause":
                self.faults.note("pause", victim.process, None)
                self.world.pause(victim.process, self.faults.some_time())
            elif what == "stop":
                self.faults.note("stop", victim.process, None)
                victim.stop()
                if chance.random() < 0.3:
                    victim.stop()
                self._start(type(victim))

    def _intervene(self) -> Flow[None]:
        """An operator retries or discards a failed job."""
        if self.witness.known:
            job_id = self.chance.choice(list(self.witness.known))
            move = self.chance.choice((self.store.retry, self.store.retry, self.store.discard))
            try:
                self.faults.injected["a person's move"] += yield from move(job_id)
            except StoreUnavailableError:
                pass  # an operator would try again later

    def _end(self) -> Flow[None]:
        for claimant in self.claimants:
            claimant.stop()
        for claimant in self.claimants:
            if claimant.process.alive and not claimant.child.done:
                yield Sleep(120.0, claimant.child.finished)
                if claimant.process.alive and not claimant.child.done:
                    self.witness.broken("does-not-end", None, f"{claimant.process.name} was told to stop")

    def _start(self, kind: type[Claimant]) -> None:
        self.started += 1
        process = self._process(f"{kind.__name__} {self.started}")
        claimant = kind(  # type: ignore[call-arg]
            self.world,
            process,
            self._operations(process),
            self.work,
            self.queues,
            ttl=self.ttl,
            timeout=self.timeout,
        )
        claimant.child = self.world.spawn(process, claimant.guarded())
        self.claimants.append(claimant)

    def _process(self, name: str) -> Process:
        """A process with a wrong clock: an hour off, or five per cent too fast. The store's clock decides."""
        offset = self.chance.choice((0.0, 0.0, 3600.0, -3600.0, 0.5))
        rate = 1.0 if self.calm else self.chance.choice((1.0, 1.0, 1.0, 0.95, 1.05))
        return self.world.process(name, offset=offset, rate=rate)

    def _operations(self, process: Process) -> JobOperations:
        return JobOperations(
            FaultyBackend(self.store, process, self.world, self.faults),
            retry=self.retry,
            random=self.chance.random,
            max_lease_expiries=self.expiries,
            limits=DEFAULT_LIMITS,
        )

    def _produce(self, process: Process, count: int) -> Flow[None]:
        chance = self.chance
        producer = Producer(self._operations(process), self.witness, chance, process.name)
        for number in range(count):
            new = NewJob(
                {"n": number},
                f"job-{number}",
                chance.randint(0, 3),
                chance.choice((0.0, 0.0, chance.random() * 2 * self.ttl)),
                chance.choice((None, None, 0, 1)),
            )
            yield from producer.enqueue(chance.choice(self.queues), new)
            if chance.random() < 0.5:
                yield Sleep(chance.random() * self.ttl)
