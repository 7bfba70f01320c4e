"""The result of a schedule."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from conquiet.verify.history import Event, Violation


@dataclass
class Played:
    seed: int
    kind: str
    trace: list[Event] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    steps: int = 0
    seconds: float = 0.0  # virtual seconds
