"""One schedule of the in-process queue: producers, workers that come and go, and a breaker in front of the platform."""

from __future__ import annotations

import math
import random
from typing import Any

from conquiet.errors import ConquietError, QueueFullError, QueueShutdownError
from conquiet.flow import Signal
from conquiet.local import CircuitBreaker, PriorityDelayQueue, QueueItem, QueueSettings, Worker
from conquiet.verify.history import Event, Violation, check
from tests.simulation.played import Played
from tests.simulation.stage import Stage
from tests.simulation.world import Livelock

PRIORITIES = {"high": 0, "normal": 5, "low": 10}
COOLDOWN, THRESHOLD, TRIALS = 5.0, 3, 1


def play_local(seed: int, chance: random.Random) -> Played:
    stage = Stage(chance)
    schedule = LocalSchedule(stage)
    try:
        stage.play()
    except Livelock as error:
        schedule.broken("livelock", None, str(error))
    schedule.judge_breaker_at_rest()
    played = Played(seed, "local", schedule.events)
    verdict = check(schedule.events)
    played.violations = schedule.found + verdict.violations
    played.faults["stop"] = schedule.stops
    played.faults["handler failed"] = schedule.failures
    played.steps, played.seconds = stage.turns, stage.monotonic()
    return played


class WitnessedQueue(PriorityDelayQueue):
    """The real queue; what goes in and comes out is recorded."""

    def __init__(self, schedule: LocalSchedule, settings: QueueSettings, clock: Stage) -> None:
        super().__init__(settings, clock)
        self._seen_by = schedule

    def dequeue(
        self, block: bool = True, timeout: float | None = None, *, stop: Signal | None = None
    ) -> QueueItem | None:
        schedule, who = self._seen_by, self._seen_by.stage.who
        op = schedule.write("invoke", "deliver", holder=who)
        since = schedule.stage.monotonic()
        if block:
            schedule.idle[who] = since
        item = super().dequeue(block, timeout, stop=stop)
        schedule.took(op, who, item)
        schedule.idle.pop(who, None)
        return item


class LocalSchedule:
    def __init__(self, stage: Stage) -> None:
        chance = stage.chance
        self.stage = stage
        self.chance = chance
        self.events: list[Event] = []
        self.found: list[Violation] = []
        self.idle: dict[str, float] = {}
        self.waiting: dict[int, tuple[int, float]] = {}  # by seq: priority value and due time
        self.stops = self.failures = 0
        self._op = 0
        self.failure_rate = chance.choice((0.1, 0.5, 0.9))
        self.queue = WitnessedQueue(self, QueueSettings(PRIORITIES, chance.choice((2, 5, 100)), 50), stage)
        self.breaker = CircuitBreaker(THRESHOLD, COOLDOWN, TRIALS, stage)
        self.expected = Expected(stage)
        self.workers: list[Worker] = []
        for number in range(chance.randint(1, 3)):
            self._start_worker(number)
        self._producing = chance.randint(1, 2)
        for number in range(self._producing):
            stage.spawn(lambda name=f"producer {number}": self._produce(name), f"producer {number}")  # type: ignore[misc]
        if chance.random() < 0.5:
            stage.spawn(self._replace_workers, "operator")

    # -- the actors ----------------------------------------------------------------------------------------------

    def _start_worker(self, number: int) -> None:
        worker = Worker(self.queue, self._handle, poll_timeout=self.chance.choice((1.0, 5.0, 1_000.0)))
        self.workers.append(worker)
        self.stage.spawn(worker._work, f"worker {number}")

    def _replace_workers(self) -> None:
        for number in range(self.chance.randint(1, 3)):
            self.stage.sleep(self.chance.random() * 3)
            self.chance.choice(self.workers).request_stop()
            self.stops += 1
            self._start_worker(10 + number)

    def _produce(self, name: str) -> None:
        for number in range(self.chance.randint(1, 6)):
            id = f"{name[-1]}.{number}"
            label = self.chance.choice(list(PRIORITIES))
            delay = self.chance.choice((0.0, 0.0, self.chance.random() * 4))
            self._enqueue(id, label, delay, name)
            if self.chance.random() < 0.6:
                self.stage.sleep(self.chance.choice((0.0, self.chance.random())))
        self._producing -= 1
        if not self._producing:
            self.queue.shutdown()
            self._refused_after_shutdown()

    def _enqueue(self, id: str, label: str, delay: float, name: str) -> None:
        while True:
            op = self.write("invoke", "enqueue", id, name)
            try:
                item = self.queue.enqueue(id, label, delay)
            except QueueFullError:
                self.write("fail", "enqueue", id, name, op=op)
                self.stage.sleep(0.5)
                continue
            except Exception as error:  # this is what the simulation looks for
                self.broken("foreign-error", id, f"enqueue: {error!r}")
                return
            self.waiting[item.seq] = (PRIORITIES[label], self.stage.monotonic() + delay)
            self.write("ok", "enqueue", id, name, op=op)
            return

    def _refused_after_shutdown(self) -> None:
        try:
            self.queue.enqueue("too late")
            self.broken("foreign-error", None, "a queue that is shut down took an item")
        except QueueShutdownError:
            pass

    def _handle(self, id: str) -> None:
        who = self.stage.who
        op = self.write("invoke", "handle", id, who)
        began = self.expected.openings
        allowed = self.breaker.allow()
        self._judge_breaker(allowed, self.expected.allow())
        self.stage.sleep(self.chance.choice((0.0, self.chance.random() * 2, 8.0)))
        fails = allowed and self.chance.random() < self.failure_rate
        if allowed:
            (self.breaker.record_failure if fails else self.breaker.record_success)()
            (self.expected.failure if fails else self.expected.success)(began)
            self._judge_breaker(str(self.breaker.state), self.expected.state)
        self.write("fail" if fails else "ok", "handle", id, who, op=op)
        final = "bury" if fails else "ack"
        op = self.write("invoke", final, id, who)
        self.write("ok", final, id, who, op=op)
        if fails:
            self.failures += 1
            raise ConquietError("the platform does not answer")

    # -- observations --------------------------------------------------------------------------------------------

    def write(
        self, phase: Any, name: str, id: str | None = None, holder: str = "", *, op: str = "", **more: Any
    ) -> str:
        if not op:
            self._op += 1
            op = str(self._op)
        event = Event(phase, name, op, id, holder, at=self.stage.monotonic(), **more)
        self.events.append(event)
        return op

    def broken(self, kind: str, id: str | None, message: str) -> None:
        self.found.append(Violation(kind, id, message))

    def took(self, op: str, who: str, item: QueueItem | None) -> None:
        now = self.stage.monotonic()
        if item is None:
            self.write("ok", "deliver", None, who, op=op)
            return
        self.write("ok", "deliver", item.job, who, op=op, until=math.inf)
        value, due = self.waiting.pop(item.seq, (item.priority_value, now))
        if due > now + 1e-9:
            self.broken("claimed-early", item.job, f"handed out at {now:g}, due at {due:g}")
        better = [seq for seq, (v, d) in self.waiting.items() if d <= now and (v, seq) < (value, item.seq)]
        if better:
            self.broken("passed-over", item.job, f"{len(better)} items before it were ready")
        for name, since in self.idle.items():
            if now - max(since, due) > 1e-6:
                message = f"ready since {due:g}, taken at {now:g}, and {name} waited all the while"
                self.broken("slept-through", item.job, message)

    def _judge_breaker(self, got: Any, expected: Any) -> None:
        if got != expected:
            self.broken("breaker", None, f"at {self.stage.monotonic():g}: {got}, where {expected} is right")

    def judge_breaker_at_rest(self) -> None:
        """Whatever its state, after two cooldowns a call is allowed again."""
        self.stage.advance(2 * COOLDOWN)
        if not self.breaker.allow():
            self.broken("breaker", None, "it never lets a call through again")


class Expected:
    """A second implementation of the breaker, from its description: a list of events, evaluated anew each time."""

    def __init__(self, clock: Stage) -> None:
        self._clock = clock
        self._run = 0
        self._opened: float | None = None
        self._trials: list[float] = []
        self.openings = 0

    @property
    def state(self) -> str:
        if self._opened is None:
            return "CLOSED"
        return "OPEN" if self._clock.monotonic() - self._opened < COOLDOWN else "HALF_OPEN"

    def allow(self) -> bool:
        if self.state == "HALF_OPEN":
            now = self._clock.monotonic()
            out = [begun for begun in self._trials if now - begun < COOLDOWN]
            if len(out) < TRIALS:
                self._trials = [*out, now]
                return True
            return False
        return self.state == "CLOSED"

    def success(self, began: int) -> None:
        if began != self.openings:
            return  # it was allowed before the breaker opened
        if self.state == "CLOSED" or (self.state == "HALF_OPEN" and self._trials):
            self._run, self._opened, self._trials = 0, None, []

    def failure(self, began: int) -> None:
        if began != self.openings:
            return
        state = self.state
        self._run += state == "CLOSED"
        if (state == "CLOSED" and self._run >= THRESHOLD) or (state == "HALF_OPEN" and self._trials):
            self._opened, self._trials = self._clock.monotonic(), []
            self.openings += 1
