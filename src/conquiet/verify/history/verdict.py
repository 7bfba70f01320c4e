"""The verdict of the checker."""

from __future__ import annotations

from dataclasses import dataclass, fields

__all__ = ["Counts", "Verdict", "Violation"]

_SHOWN = 10  # violations in a report: there may be thousands, and the first ones show what is wrong


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken rule (see `conquiet.verify.history`), the id, and the lines that prove it."""

    kind: str
    id: str | None
    message: str
    evidence: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n    ".join((f"{self.kind}: {self.id}: {self.message}", *self.evidence))


@dataclass(slots=True)
class Counts:
    """Totals. `enqueued`, `acked` and `buried` count ids, the others operations."""

    events: int = 0
    enqueued: int = 0
    delivered: int = 0
    redelivered: int = 0  # deliveries beyond the first of an id
    handled: int = 0
    acked: int = 0
    buried: int = 0
    late_handlers: int = 0
    failed: int = 0
    unknown: int = 0  # recorded as unknown, or left without an end by a killed process
    torn: int = 0  # fragments of lines, left by processes killed during a write

    def __str__(self) -> str:
        return ", ".join(f"{getattr(self, f.name):,} {f.name.replace('_', ' ')}" for f in fields(self))


@dataclass(frozen=True, slots=True)
class Verdict:
    violations: list[Violation]
    counts: Counts

    @property
    def ok(self) -> bool:
        return not self.violations

    @property
    def kinds(self) -> set[str]:
        """The broken rules."""
        return {violation.kind for violation in self.violations}

    def raise_if_broken(self) -> None:
        """Raise AssertionError with the violations and their evidence, if there are any."""
        if self.violations:
            raise AssertionError(str(self))

    def __str__(self) -> str:
        if not self.violations:
            return f"the history holds: {self.counts}"
        more = len(self.violations) - _SHOWN
        return "\n".join(
            [
                f"the history is broken, {len(self.violations)} times: {self.counts}",
                *map(str, self.violations[:_SHOWN]),
                *([f"… and {more} more"] if more > 0 else []),
            ]
        )
