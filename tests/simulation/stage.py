"""Real threads that take turns: one runs at a time, in an order that follows from the seed.

For code that waits on a `Clock` and not by effects: the in-process queue, its workers, the retry scheduler. A thread
gives up its turn where it waits, and nowhere else. When all wait, time jumps to the earliest deadline.
"""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable

from conquiet.clock import Parker
from conquiet.testing import ManualClock
from tests.simulation.world import Killed, Livelock

MOST_TURNS = 3_000


class Actor:
    """One thread on the stage."""

    def __init__(self, stage: Stage, play: Callable[[], None], name: str, group: str) -> None:
        self.name = name
        self.group = group
        self.done = False
        self.killed = False
        self.woken = False
        self.parker: Parker | None = None
        self.deadline = -math.inf
        self.turn = threading.Lock()
        self.turn.acquire()
        self._stage = stage
        self._play = play
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def _run(self) -> None:
        self.turn.acquire()
        try:
            if not self.killed:
                self._play()
        except Killed:
            pass
        except BaseException as error:  # raised again by the stage
            self._stage.failure = error
        self.done = True
        self._stage.back.release()

    def can_go_on(self, now: float) -> bool:
        if self.killed or self.deadline <= now:
            self.woken = False
            return True
        self.woken = self.parker is not None and self.parker.park(0)
        return self.woken


class Stage(ManualClock):
    """A clock whose waits are turns of the actors."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.chance = chance
        self.turns = 0
        self.back = threading.Lock()
        self.back.acquire()
        self.failure: BaseException | None = None
        self._actors: list[Actor] = []
        self._on: Actor | None = None

    def spawn(self, play: Callable[[], None], name: str, group: str = "") -> Actor:
        actor = Actor(self, play, name, group)
        self._actors.append(actor)
        actor.thread.start()
        return actor

    @property
    def who(self) -> str:
        return "nobody" if self._on is None else self._on.name

    def monotonic(self) -> float:
        if self._on is not None and self._on.killed:
            raise Killed  # code that catches everything, as a worker does around its handler, gets here again
        return super().monotonic()

    def wait(self, parker: Parker, timeout: float | None) -> bool:
        """Called by an actor: its turn is over until it is woken or its deadline is reached."""
        actor = self._on
        assert actor is not None, "no actor has the turn"
        if self.chance.random() < 0.3:
            self._leave(actor, None, 0.0)  # wake-ups get lost just before the wait
        return self._leave(actor, parker, timeout)

    def sleep(self, seconds: float) -> None:
        actor = self._on
        assert actor is not None, "no actor has the turn"
        self._leave(actor, None, seconds)

    def _leave(self, actor: Actor, parker: Parker | None, timeout: float | None) -> bool:
        actor.parker = parker
        actor.deadline = math.inf if timeout is None else super().monotonic() + timeout
        self.back.release()
        actor.turn.acquire()
        if actor.killed:
            raise Killed
        return actor.woken

    def kill(self, group: str) -> None:
        """End an actor as the end of a process ends its threads."""
        for actor in self._actors:
            if actor.group == group:
                actor.killed = True

    def play(self) -> None:
        """Run until every actor has left, or none can go on; those are killed."""
        try:
            self._turns()
        finally:
            for actor in self._actors:
                while not actor.done:
                    actor.killed = True
                    self._give_turn(actor)
                actor.thread.join()
        if self.failure is not None:
            raise self.failure

    def _turns(self) -> None:
        while self.failure is None:
            self._actors = [actor for actor in self._actors if not actor.done or actor.thread.join()]
            now = self.monotonic()
            ready = [actor for actor in self._actors if actor.can_go_on(now)]
            if not ready:
                first = min((actor.deadline for actor in self._actors), default=math.inf)
                if first == math.inf:
                    return
                self.advance_to(first)
                continue
            chosen = ready[int(self.chance.random() * len(ready))]
            for actor in ready:
                if actor is not chosen and actor.woken:
                    assert actor.parker is not None
                    actor.parker.wake()  # it was checked, and stays woken
            self._give_turn(chosen)
            self.turns += 1
            if self.turns > MOST_TURNS:
                raise Livelock(f"{self.turns} turns, and the time is {self.monotonic():g}")

    def _give_turn(self, actor: Actor) -> None:
        self._on = actor
        actor.turn.release()
        self.back.acquire()
        self._on = None
