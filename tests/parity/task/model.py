"""The engine as arithmetic: what must be seen of a script with one worker, computed without running anything.

Written from the document, not from the engine: no flows, no clock, no exceptions; time is a number that grows.
Events at exactly the time of a limit are not modelled: scripts must not produce them.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from conquiet.task.mixins.policies import ConsumerPolicy, EmptyQueuePolicy, RetryPolicy
from tests.parity.task.script import Act, Script

# What a failure counts as, and how the exception handler sees it.
KINDS = {
    "BUSINESS": ("BUSINESS", ""),
    "SYSTEM": ("SYSTEM", ""),
    "TIMEOUT": ("TIMEOUT", ""),
    "ValueError": ("SYSTEM", " ValueError"),
    "TimeoutError": ("TIMEOUT", " TimeoutError"),
    "CallTimeoutError": ("TIMEOUT", " CallTimeoutError"),
    "CancelledError": ("SYSTEM", " CancelledError"),
    "SystemExit": ("SYSTEM", " SystemExit"),
}


@dataclass
class Step:
    """How a step ended: `failed` is None or what it counts as, and `told` is what a handler sees."""

    now: float
    failed: str | None = None
    told: str = ""
    result: Any = None
    out_of_time: bool = False


@dataclass
class Life:
    lines: list[str] = field(default_factory=list)
    begins: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    outcome: str = ""
    status: str = ""
    now: float = 0.0  # when it ends

    def until(self, cut: float) -> list[str]:
        """What is seen of it if everything ends at `cut`."""
        seen = zip(self.lines, self.begins, self.ends, strict=True)
        return [line if end < cut else _open(line) for line, begin, end in seen if begin < cut]


@dataclass
class Seen:
    lives: dict[str, list[str]] = field(default_factory=dict)
    fetches: list[str] = field(default_factory=list)
    shown: Counter[str] = field(default_factory=Counter)
    stop_reason: str = ""
    raised: str | None = None
    counts: Counter[str] = field(default_factory=Counter)
    by_category: Counter[str] = field(default_factory=Counter)
    ended: float = field(default=0.0, compare=False)


class Lives:
    """The transactions of one script. Each call uses up one act."""

    def __init__(self, script: Script, policy: ConsumerPolicy) -> None:
        self._script = script
        self._steps = policy.steps
        self._timeout = policy.loop.transaction_timeout
        self._calls: Counter[str] = Counter()

    def act(self, name: str) -> Act:
        self._calls[name] += 1
        return self._script.act(name, self._calls[name] - 1)

    def live(self, tx_id: str, begin: float) -> Life:
        life = Life()
        deadline = math.inf if self._timeout is None else begin + self._timeout
        steps = self._steps
        before = self._calls[f"{tx_id} process"]
        end = self.step(life, tx_id, "process", "", steps.process.retry, begin, deadline)
        attempts = self._calls[f"{tx_id} process"] - before
        result = end.result
        if end.failed is None:
            end = self.step(life, tx_id, "success", f"({result})", steps.success.retry, end.now, deadline)
        if end.failed is None:
            text = f" ={result}" if result is not None else ""
            life.outcome, life.status = f"{tx_id} succeeded{text} x{attempts}", "succeeded"
        else:
            last = math.inf if end.out_of_time else deadline
            category = end.failed
            end = self.step(
                life, tx_id, "exception", f"({category}{end.told})", steps.exception.retry, end.now, last
            )
            handled = " handled" if end.failed is None else ""
            life.outcome, life.status = (
                f"{tx_id} failed {end.failed or category}{handled} x{attempts}",
                "failed",
            )
        life.now = end.now
        return life

    def step(
        self, life: Life, tx_id: str, name: str, told: str, retry: RetryPolicy, now: float, deadline: float
    ) -> Step:
        for attempt in range(retry.max_attempts):
            act = self.act(f"{tx_id} {name}")
            limit = min(math.inf if retry.timeout is None else now + retry.timeout, deadline)
            line = f"{name}{told} {now:g}-"
            life.begins.append(now)
            if now + act.takes < limit:
                now += act.takes
                life.lines.append(f"{line}{now:g}" + (f" !{act.raises}" if act.raises else ""))
                life.ends.append(now)
                if act.raises is None:
                    return Step(now, result=act.returns)
                failed, cause = KINDS[act.raises]
            else:
                now = limit
                life.lines.append(line)
                life.ends.append(now)
                failed, cause = "TIMEOUT", " CallTimeoutError"
                if limit == deadline:
                    return Step(now, failed, cause, out_of_time=True)
            if failed == "BUSINESS" or attempt + 1 == retry.max_attempts:
                return Step(now, failed, cause)
            pause = delay(retry, attempt)
            if now + pause > deadline:
                return Step(deadline, "TIMEOUT", " TransactionException", out_of_time=True)
            now += pause
        raise AssertionError("max_attempts is at least 1")


class Loop:
    """One worker: it fetches a batch, processes its transactions one after the other, and fetches again."""

    def __init__(self, script: Script, policy: ConsumerPolicy) -> None:
        self.seen = Seen()
        self._lives = Lives(script, policy)
        self._policy = policy.loop
        self._fetch = policy.steps.fetch.retry
        self._deadline = math.inf if policy.loop.timeout is None else policy.loop.timeout
        self._now = 0.0

    def run(self) -> Seen:
        empties = 0
        while not self.seen.stop_reason:
            size = self._policy.batch.size
            if self._policy.limit is not None:
                size = min(size, self._policy.limit - self.seen.counts["fetched"])
            if size <= 0:
                self.seen.stop_reason = "limit"
                break
            ids = self.fetch(size)
            if ids is None:
                break
            self.seen.counts["fetched"] += len(ids)
            if len(ids) > size:
                self._raise("ConnectorContractException")
                for name in ids:
                    self.leave(name, 0)
            elif ids:
                empties = 0
                self.live_all(ids)
            elif not self._policy.streaming:
                self.seen.stop_reason = "drained"
            else:
                self.pass_time(delay(self._policy.empty_queue, empties))
                empties += 1
        self.seen.ended = self._deadline if self.seen.stop_reason == "loop timeout" else self._now
        return self.seen

    def fetch(self, size: int) -> list[str] | None:
        for attempt in range(self._fetch.max_attempts):
            act = self._lives.act("fetch")
            limit = math.inf if self._fetch.timeout is None else self._now + self._fetch.timeout
            line = f"fetch({size}) {self._now:g}-"
            end = self._now + act.takes
            if end < min(limit, self._deadline):
                self._now = end
                self.seen.fetches.append(f"{line}{end:g}" + (f" !{act.raises}" if act.raises else ""))
                if act.raises is None:
                    return (act.returns or "").split()
                # Categories are for transactions: a fetch that raises one has failed like any other.
                timed_out = act.raises in ("TimeoutError", "CallTimeoutError")
            else:
                self.seen.fetches.append(line)
                if self._deadline < limit:
                    self.seen.stop_reason = "loop timeout"
                    return None
                self._now, timed_out = limit, True
            if attempt + 1 == self._fetch.max_attempts:
                self._raise("FetchTimeoutException" if timed_out else "FetchException")
                return None
            if not self.pass_time(delay(self._fetch, attempt)):
                return None
        raise AssertionError("max_attempts is at least 1")

    def live_all(self, ids: list[str]) -> None:
        for number, name in enumerate(ids):
            life = self._lives.live(name, self._now)
            lines = life.until(self._deadline)
            self.seen.lives.setdefault(name, []).extend(lines)
            if life.now > self._deadline:
                self.seen.stop_reason = "loop timeout"
                self.leave(name, sum(line.startswith("process") for line in lines))
                for other in ids[number + 1 :]:
                    self.leave(other, 0)
                return
            self._now = life.now
            self.seen.shown[life.outcome] += 1
            self.seen.counts[life.status] += 1
            if life.status == "failed":
                self.seen.by_category[life.outcome.split()[2]] += 1

    def leave(self, name: str, attempts: int) -> None:
        self.seen.shown[f"{name} unsettled x{attempts}"] += 1
        self.seen.counts["unsettled"] += 1

    def pass_time(self, seconds: float) -> bool:
        if self._now + seconds > self._deadline:
            self.seen.stop_reason = "loop timeout"
            return False
        self._now += seconds
        return True

    def _raise(self, name: str) -> None:
        self.seen.stop_reason, self.seen.raised = "error", name


def delay(policy: RetryPolicy | EmptyQueuePolicy, failures: int) -> float:
    seconds = policy.backoff * policy.backoff_multiplier**failures
    return min(seconds, policy.backoff_cap) if policy.backoff_cap > 0 else seconds


def _open(line: str) -> str:
    """A call that was cut off, without its end."""
    head, _, _ = line.partition("-")
    return f"{head}-"
