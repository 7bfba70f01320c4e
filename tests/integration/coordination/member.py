"""A program: one of several processes with the same shared state, told what to do line by line.

python -m tests.integration.coordination.member URL CLOCK

CLOCK is "manual" (time passes by the command `advance`) or "server". A command is a JSON list: the name and the arguments of
a function below; the answer is a line of JSON.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from conquiet.coordination import SharedBreakerRegistry, SharedPace, SharedRateLimiter, SharedState
from conquiet.reconcile import IntakeRules
from conquiet.reconcile.intake.rate_limit import RateLimiter
from conquiet.testing import ManualClock

ROOT = Path(__file__).parents[3]


class Member:
    """One such process, as the test sees it."""

    def __init__(self, url: str, clock: str) -> None:
        command = [sys.executable, "-m", "tests.integration.coordination.member", url, clock]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def send(self, *command: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def receive(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def ask(self, *command: Any) -> Any:
        self.send(*command)
        return self.receive()


@contextmanager
def members(count: int, url: str, clock: str = "manual") -> Iterator[list[Member]]:
    started = [Member(url, clock) for _ in range(count)]
    try:
        yield started
    finally:
        for member in started:
            member.process.kill()
            member.process.wait()
            for pipe in (member.process.stdin, member.process.stdout):
                assert pipe is not None
                pipe.close()


def main(url: str, clock_kind: str) -> None:
    lines: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logging.getLogger("conquiet").addHandler(Kept())
    logging.getLogger("conquiet").setLevel(logging.INFO)
    clock = ManualClock() if clock_kind == "manual" else None
    state = SharedState(url, clock=clock, timeout_seconds=60)
    rules = IntakeRules()
    breaker = SharedBreakerRegistry(state, open_cooldown_seconds=300 if clock else 0.5).for_platform("clips")
    limiter = SharedRateLimiter(
        state, RateLimiter(rules, state.clock), per_minute=rules.per_minute, burst=rules.burst
    )
    pace = SharedPace(state)

    def advance(seconds: float) -> None:
        assert clock is not None
        clock.advance(seconds)

    functions: dict[str, Any] = {
        "advance": advance,
        "state": lambda: str(breaker.state),
        "allow": lambda times=1: sum(breaker.allow() for _ in range(times)),
        "success": breaker.record_success,
        "failure": breaker.record_failure,
        "rate": lambda name, times=1: [limiter.wait_for(name) for _ in range(times)].count(0.0),
        "asked": pace.asked,
        "answered": pace.answered,
        "wait": pace.wait_for,
        "log": lambda: lines,
    }
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(functions[name](*arguments)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
