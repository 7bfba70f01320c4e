"""The simulated machines: processes on one thread and one virtual clock that can be killed and paused."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Any

from conquiet.clock import Clock, Parker
from conquiet.errors import FlowError
from conquiet.flow import Child, Flow
from conquiet.testing import ManualClock
from conquiet.testing.virtual import VirtualDriver, _Task

MOST_STEPS = 15_000  # of flows; a schedule needs about a hundred, the longest a few thousand
MOST_CALLS = 1_000  # at one instant
_TICK = 1e-6  # every sleep, however short, lets time pass, as on a real machine


class Killed(BaseException):
    """Thrown into the flows of a dead process, to free them. What they do with it has no effect."""


class Livelock(Exception):
    """Flows keep running, and time does not pass."""


class ProcessClock:
    """A process's own time: `offset` seconds off, and running at another speed."""

    def __init__(self, base: ManualClock, offset: float, rate: float) -> None:
        self._base, self._offset, self._rate = base, offset, rate

    def time(self) -> float:
        return self._base.time() + self._offset

    def monotonic(self) -> float:
        return self._base.monotonic() * self._rate

    def wait(self, parker: Parker, timeout: float | None) -> bool:
        raise FlowError("flows in the simulation sleep by Sleep alone")


class Process:
    """Flows that start and die together."""

    def __init__(self, name: str, clock: Clock, rate: float) -> None:
        self.name = name
        self.clock = clock
        self.rate = rate
        self.alive = True
        self.paused = False
        self.held: list[_Task] = []  # could go on if the process were not paused
        self.tasks: list[_Task] = []
        self.connections: list[Any] = []  # closed at its death, as the kernel does


class World(VirtualDriver):
    """Runs the flows of many processes. All randomness comes from `chance`."""

    def __init__(self, chance: random.Random) -> None:
        draw = chance.random
        super().__init__(ManualClock(), lambda n: int(draw() * n))
        self.chance = chance
        self.steps = self._calls = 0
        self._called_at = 0.0
        self._here = Process("the machine room", self.clock, 1.0)
        self._machine_room = self._here
        self.network = Process(
            "the network", self.clock, 1.0
        )  # holds the requests whose callers have given up
        self._dying: list[Process] = []
        self._processes: list[Process] = []

    def process(self, name: str, *, offset: float = 0.0, rate: float = 1.0) -> Process:
        return Process(name, ProcessClock(self.clock, offset, rate), rate)

    def spawn(self, process: Process, flow: Flow[Any], name: str = "main") -> Child[Any]:
        """Start `flow` in `process`."""
        child: Child[Any] = Child(f"{process.name}: {name}")
        here, self._here = self._here, process
        self._start(flow, child)
        self._here = here
        return child

    def play(self, main: Flow[Any]) -> Any:
        """Run everything until `main`, which runs in no process, has ended; then drop the rest."""
        child = self.spawn(self._machine_room, main)
        ready, timers = self._ready, self._timers
        try:
            while not child.done:
                if ready:
                    task = ready.pop(self._choose(len(ready)) if len(ready) > 1 else 0)
                    process = task.process  # type: ignore[attr-defined]
                    if not process.alive:
                        continue
                    if process.paused:
                        process.held.append(task)
                        continue
                    self._here = process
                    task.step()
                    self.steps += 1
                    if self.steps > MOST_STEPS:
                        raise Livelock(f"{self.steps} steps, and the time is {self.clock.monotonic():g}")
                    while self._dying:
                        _free(self._dying.pop())
                elif timers:
                    deadline, _, ring = heapq.heappop(timers)
                    self.clock.advance_to(deadline)
                    ring()
                else:
                    raise FlowError("nothing can go on any more")
        finally:
            for process in self._processes:
                _free(process)
        return child.result()

    def count_call(self) -> None:
        """Called at every call of the store: a flow that calls without end, and never waits, must be noticed."""
        now = self.clock.monotonic()
        self._calls = self._calls + 1 if now == self._called_at else 0
        self._called_at = now
        if self._calls > MOST_CALLS:
            raise Livelock(f"{MOST_CALLS} calls of the store, and all at {now:g}")

    def kill(self, process: Process) -> None:
        """kill -9: none of it runs any more, not even its cleanup."""
        if process.alive:
            process.alive = False
            self._dying.append(process)

    def pause(self, process: Process, seconds: float) -> None:
        """SIGSTOP, and SIGCONT after `seconds`."""
        if process.paused or not process.alive:
            return
        process.paused = True

        def go_on() -> None:
            process.paused = False
            self._ready.extend(process.held)
            process.held.clear()

        heapq.heappush(self._timers, (self.clock.monotonic() + seconds, next(self._tie), go_on))

    def _start(self, flow: Flow[Any], child: Child[Any]) -> None:
        task = _Task(self, flow, child)
        task.process = self._here  # type: ignore[attr-defined]
        if not self._here.tasks:
            self._processes.append(self._here)
        self._here.tasks.append(task)
        self._ready.append(task)

    def _at(self, seconds: float, ring: Callable[[], None]) -> None:
        wait = max(seconds / self._here.rate, _TICK) if seconds > 0 else 0.0
        heapq.heappush(self._timers, (self.clock.monotonic() + wait, next(self._tie), ring))


def _free(process: Process) -> None:
    """End the generators of a process. The garbage collector would close them in the middle of their cleanup."""
    process.alive = False
    for task in process.tasks:
        for frame in reversed(task._frames):
            flow = frame.steps._flow
            try:
                while True:
                    flow.throw(Killed())
            except BaseException:  # it has ended, one way or another
                pass
        task._frames.clear()
    process.tasks.clear()
    process.held.clear()
    for connection in process.connections:
        connection.close()
    process.connections.clear()
