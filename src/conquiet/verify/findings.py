"""The findings of the checks, and the verdict over all of them."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter

from conquiet.errors import redact
from conquiet.verify.history import check

__all__ = [
    "Check",
    "Extent",
    "Finding",
    "SkippedError",
    "Verdict",
    "asked",
    "bound",
    "examined",
    "judge",
    "require",
]


@dataclass(frozen=True)
class Extent:
    """How much: jobs or messages per check, processes killed, connections cut, processes paused and (the same number)
    stopped, asyncio calls cancelled. A fault with the number 0 is skipped."""

    work: int = 500
    kills: int = 10
    cuts: int = 40
    signals: int = 5
    cancels: int = 100


@dataclass(frozen=True)
class Finding:
    """`kind` is "kept" (a promise holds), "broken", "skipped" (not tested, and why), or "note" (a setting of the server,
    and what it can lose)."""

    name: str
    kind: str
    detail: str
    seconds: float = 0.0


@dataclass(frozen=True)
class Check:
    """A promise and its test: `run` returns the figures, or raises."""

    name: str
    run: Callable[[], str]


@dataclass(frozen=True)
class Verdict:
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        return not any(finding.kind == "broken" for finding in self.findings)


class SkippedError(Exception):
    """The check cannot run here; the message is the reason."""


class _BrokenPromise(AssertionError):
    """Raised by `require`."""


def require(holds: bool, what: str) -> None:
    if not holds:
        raise _BrokenPromise(what)


def asked(count: int, option: str) -> int:
    """`count`, if it is above 0; otherwise the check is skipped."""
    if not count:
        raise SkippedError(f"{option}=0 was requested")
    return count


def judge(history: str | os.PathLike[str], *, fenced: bool) -> None:
    """Check `history`; raises if a rule is broken."""
    found = check(history, fenced=fenced).violations
    if found:
        first = found[0]
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise _BrokenPromise(f"the history is broken: {first.kind}: {first.id}: {first.message}{more}")


def bound(n: int) -> str:
    """The rate of loss that `n` trials without a loss cannot exclude, with 95 % confidence: 3/n."""
    return f"95 % bound 3/{n}" + (f" = {3 / n:.1%}" if n >= 3 else ": too few to tell")


def examined(checks: list[Check]) -> Iterator[Finding]:
    """Run every check, whatever the earlier ones found. An exception is a finding."""
    for one in checks:
        began = perf_counter()
        try:
            kind, detail = "kept", one.run()
        except SkippedError as error:
            kind, detail = "skipped", str(error)
        except _BrokenPromise as error:
            kind, detail = "broken", str(error)
        except Exception as error:  # noqa: BLE001 - the exception is the finding
            where = traceback.extract_tb(error.__traceback__)[-1].name
            kind, detail = "broken", f"{type(error).__name__} in {where}: {redact(str(error))}"
        yield Finding(one.name, kind, detail, perf_counter() - began)
