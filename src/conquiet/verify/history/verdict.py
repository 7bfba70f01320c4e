"""What the checker says."""

from __future__ import annotations

from dataclasses import dataclass, fields

__all__ = ["Counts", "Verdict", "Violation"]

_SHOWN = 10  # violations in a report; the first tell what is wrong, and there may be thousands


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that was broken (see `conquiet.verify.history`), for which id, and the lines that prove it."""

    kind: str
    id: str | None
    message: str
    evidence: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n    ".join((f"{self.kind}: {self.id}: {self.message}", *self.evidence))


@dataclass(slots=True)
class Counts:
    """How much happened. Ids count once in `enqueued`, `acked`, `buried`; the others count operations."""

    events: int = 0
    enqueued: int = 0
    delivered: int = 0
    redelivered: int = 0  # deliveries beyond the first of an id
    handled: int = 0
    acked: int = 0
    buried: int = 0
    late_handlers: int = 0
    failed: int = 0
    unknown: int = 0  # said so, or left without an end by a killed process
    torn: int = 0  # stumps of lines, left by processes killed in the middle of a write

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
        """Which rules were broken."""
        return {violation.kind for violation in self.violations}

    def raise_if_broken(self) -> None:
        """AssertionError, with the violations and their evidence."""
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
