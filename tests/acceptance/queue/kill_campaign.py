"""Consumers killed again and again, at named points and at random moments, until every message is handled."""

from __future__ import annotations

import math
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from conquiet.queue import QueueConfig, connect
from conquiet.verify.history import History, Verdict, check, read_events
from conquiet.verify.recording.streams import POINTS, RecordedQueue
from tests.acceptance.fleet import Fleet, Worker
from tests.acceptance.queue.worker import Effects, Work
from tests.chance import new_chance

AT_RANDOM = "random"
SLOTS = ("sync", "asyncio", "sync", "asyncio", "recovery")
CLAIM_IDLE_MS = 1_000
BACKLOG = 300  # how many messages are enqueued ahead of the consumers
DOOMED = 2  # how many wait for their death at a time
STALLED_SECONDS = 60.0


@dataclass
class Slot:
    """A place in the fleet, in which one worker follows another."""

    kind: str
    worker: Worker
    fate: str | None = None  # how it will die, once that is decided: at a point, or at a random moment
    dies_at: float = math.inf


@dataclass
class Outcome:
    messages: int
    numbers: list[int]  # of the messages, one per effect
    pending: int
    verdict: Verdict
    seconds: float
    deaths: Counter[tuple[str, str]]  # by kind of worker and fate
    redelivered: int
    moments: Counter[str]  # what those killed at random were doing

    @property
    def kills(self) -> int:
        return self.deaths.total()

    @property
    def points(self) -> Counter[str]:
        return sum((Counter({fate: count}) for (_, fate), count in self.deaths.items()), Counter())

    @property
    def kinds(self) -> Counter[str]:
        return sum((Counter({kind: count}) for (kind, _), count in self.deaths.items()), Counter())

    @property
    def lost(self) -> int:
        return self.messages - len(set(self.numbers))

    def __str__(self) -> str:
        counts, handled = self.verdict.counts, len(set(self.numbers))
        lines = [
            f"{self.kills} kill -9 of consumers in a run of {self.messages:,} messages, {self.seconds:.0f} s",
            f"killed at: {_listed(self.points)}; those at random: {_listed(self.moments)}",
            f"killed: {_listed(self.kinds)}",
            f"handled {handled:,}, lost {self.lost}, effects twice {len(self.numbers) - handled}, "
            f"left pending {self.pending}",
            f"delivered again {self.redelivered}, handled late {counts.late_handlers}, "
            f"violations {len(self.verdict.violations)} in {counts.events:,} events, {counts.torn} torn",
        ]
        if not self.lost:
            lines.append(
                f"with 95 % confidence a kill loses a message in less than {3 / self.kills:.1%} of cases"
            )
        return "\n  ".join(lines)


class KillCampaign:
    """`kills` deaths, spread over `messages` messages: most at the named points in turn, others at random moments."""

    def __init__(
        self, url: str, folder: Path, *, messages: int, kills: int, delivery: str = "Delivery"
    ) -> None:
        self._url = url
        self._folder = folder
        self._messages = messages
        self._kills = kills
        self._delivery = delivery
        self._random = new_chance()
        recoveries = kills // 10
        self._planned = {
            False: _fates(kills - recoveries, self._random),
            True: [AT_RANDOM, *_fates(recoveries - 1, self._random)] if recoveries else [],
        }  # True: fates of recovery processes
        self._given = {False: 0, True: 0}
        self._victims: set[str] = set()  # killed at random
        self._deaths: Counter[tuple[str, str]] = Counter()
        self._names = 0

    def run(self) -> Outcome:
        began = time.monotonic()
        config = QueueConfig("campaign", "group", "producer", claim_idle_ms=CLAIM_IDLE_MS)
        database, history_path = self._folder / "effects.db", self._folder / "history"
        self._effects = Effects(database)
        self._effects.create()
        with (
            connect(self._url) as redis,
            History(history_path) as history,
            Fleet(self._folder) as self._fleet,
        ):
            self._queue = RecordedQueue(redis, config, history)
            self._slots = [Slot(kind, self._start(kind)) for kind in SLOTS]
            self._until_drained()
            self._fleet.end()
            pending = self._queue.backlog_stats().pending
        numbers = self._effects.numbers()
        self._effects.close()
        return Outcome(
            *(self._messages, numbers, pending, check(history_path), time.monotonic() - began, self._deaths),
            *_told(history_path, self._victims),
        )

    def _until_drained(self) -> None:
        enqueued, progress, moved_at = 0, (0, 0), time.monotonic()
        while True:
            done, deaths = self._effects.count(), self._deaths.total()
            enqueued += self._produce(enqueued, done)
            drained = enqueued == self._messages and self._is_empty()
            if drained and deaths >= self._kills:
                return
            for slot in self._slots:
                self._tend(slot, drained)
            for recovery in (False, True):
                self._doom(recovery, self._messages if drained else done)
            now = time.monotonic()
            if (done, deaths) != progress:
                progress, moved_at = (done, deaths), now
            assert now - moved_at < STALLED_SECONDS, f"stalled: {done} of {enqueued} done, {self._slots}"
            time.sleep(0.005)

    def _produce(self, enqueued: int, done: int) -> int:
        """Enqueue a burst of messages if it is time: never so many that none are left for the deaths to come."""
        deaths = sum(count for (kind, _), count in self._deaths.items() if kind != "recovery")
        open_until = self._messages * (deaths + 1 + DOOMED) // (len(self._planned[False]) + 1)
        if enqueued == self._messages or enqueued - done >= BACKLOG:
            return 0
        waiting = any(slot.fate in POINTS for slot in self._slots)
        if enqueued >= open_until and not (waiting and self._is_empty()):
            return 0
        burst = min(self._random.randint(1, 100), self._messages - enqueued)
        self._queue.enqueue_many({"n": enqueued + number} for number in range(burst))
        return burst

    def _is_empty(self) -> bool:
        backlog = self._queue.backlog_stats()
        return backlog.lag == 0 and backlog.pending == 0

    def _doom(self, recovery: bool, done: int) -> None:
        """Decide the next death, if the run has come that far."""
        fates, given = self._planned[recovery], self._given[recovery]
        if given == len(fates) or done < self._messages * given // (len(fates) + 1):
            return
        slots = [slot for slot in self._slots if (slot.kind == "recovery") is recovery]
        if sum(slot.fate is not None for slot in slots) >= DOOMED:
            return
        candidates = [
            s for s in slots if s.fate is None and s.worker.exit_code() is None and s.worker.is_ready()
        ]
        if not candidates:
            return
        slot = self._random.choice(candidates)
        slot.fate = fates[given]
        self._given[recovery] += 1
        if slot.fate == AT_RANDOM:
            slot.dies_at = time.monotonic() + self._random.uniform(0.0, 0.3)
        else:
            slot.worker.die_at(slot.fate)

    def _tend(self, slot: Slot, drained: bool) -> None:
        """Kill workers that are due, record the dead, start replacements."""
        worker = slot.worker
        # A worker that waits for a message to die at, when there are no more, is killed immediately.
        due = time.monotonic() >= slot.dies_at or (drained and slot.fate in POINTS)
        if due and worker.exit_code() is None:
            worker.kill()
            slot.fate = AT_RANDOM
            self._victims.add(worker.work.name)
        code = worker.exit_code()
        if code is None:
            return
        assert code == -signal.SIGKILL, f"{worker.work}, exit code {code}: {worker.last_words()}"
        assert slot.fate is not None, f"{worker.work} was killed, and not by us"
        self._deaths[slot.kind, slot.fate] += 1
        worker.close()
        slot.worker, slot.fate, slot.dies_at = self._start(slot.kind), None, math.inf

    def _start(self, kind: str) -> Worker:
        self._names += 1
        work = Work(
            *(self._url, f"{kind}-{self._names}"),
            *(str(self._folder / "effects.db"), str(self._folder / "history")),
            recover=kind == "recovery",
            on_asyncio=kind == "asyncio" or (kind == "recovery" and self._names % 2 == 0),
            delivery=self._delivery,
            claim_idle_ms=CLAIM_IDLE_MS,
        )
        return self._fleet.start(work)


def _fates(kills: int, source: random.Random) -> list[str]:
    """Six in ten at a named point, and each point at least once if there are enough kills."""
    named = max(min(kills, len(POINTS)), kills * 6 // 10)
    fates = [POINTS[number % len(POINTS)] for number in range(named)] + [AT_RANDOM] * (kills - named)
    source.shuffle(fates)
    return fates


def _told(history: Path, victims: set[str]) -> tuple[int, Counter[str]]:
    """How many deliveries were not the first, by Redis's own count, and the last recorded event of each victim."""
    again = 0
    last: dict[str, str] = {}
    for _, event in read_events(history):
        if event is None:
            continue
        again += event.phase == "ok" and (event.version or 1) > 1
        if event.holder in victims:
            last[event.holder] = f"{'in' if event.phase == 'invoke' else 'after'} {event.name}"
    return again, Counter(last.values())


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.most_common()) or "none"
