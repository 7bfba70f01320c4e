"""What a check found, and what all of them together say."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter

from conquiet.errors import redact

__all__ = ["Check", "Finding", "Verdict", "examined", "require"]


@dataclass(frozen=True)
class Finding:
    """`kind` is "kept" (a promise held), "broken", or "note" (a setting of the server, and what it can lose)."""

    name: str
    kind: str
    detail: str
    seconds: float = 0.0


@dataclass(frozen=True)
class Check:
    """A promise, and how it is put to the test: `run` returns the figure, or raises."""

    name: str
    run: Callable[[], str]


@dataclass(frozen=True)
class Verdict:
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        return not any(finding.kind == "broken" for finding in self.findings)


class _BrokenPromise(AssertionError):
    """Raised by `require`."""


def require(holds: bool, what: str) -> None:
    if not holds:
        raise _BrokenPromise(what)


def examined(checks: list[Check]) -> Iterator[Finding]:
    """Every check is made, whatever became of those before. What it raises is what it found."""
    for check in checks:
        began = perf_counter()
        try:
            kind, detail = "kept", check.run()
        except _BrokenPromise as error:
            kind, detail = "broken", str(error)
        except Exception as error:  # noqa: BLE001 - it is the finding
            where = traceback.extract_tb(error.__traceback__)[-1].name
            kind, detail = "broken", f"{type(error).__name__} in {where}: {redact(str(error))}"
        yield Finding(check.name, kind, detail, perf_counter() - began)
