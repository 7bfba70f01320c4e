"""`make simulate`: play one seed and show it, or play many and count."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import islice

from tests.simulation.play import play, quiet
from tests.simulation.played import Played

CHUNK = 500


@dataclass
class Tally:
    """The results of many schedules."""

    schedules: int = 0
    events: int = 0
    cpu_seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    broken: list[Played] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.schedules += other.schedules
        self.events += other.events
        self.cpu_seconds += other.cpu_seconds
        self.faults += other.faults
        self.broken += other.broken

    def __str__(self) -> str:
        n, speed = self.schedules, self.schedules / max(self.cpu_seconds, 1e-9)
        lines = [
            f"{n:,} schedules, {self.events:,} events, {self.faults.total():,} faults injected, "
            f"{len(self.broken)} violated; {speed:,.0f} schedules/s per core",
            *(f"    {count:>10,}  {kind}" for kind, count in self.faults.most_common()),
        ]
        if not self.broken:
            lines.append(
                f"with 95 % confidence fewer than {3 / n:.2g} of all schedules (3/n) would show a violation"
            )
        return "\n".join(lines)


def tally(first: int, count: int) -> Tally:
    """Play `count` seeds from `first` on."""
    begun = time.process_time()
    result = Tally()
    with quiet():
        for seed in range(first, first + count):
            played = play(seed)
            result.schedules += 1
            result.events += len(played.trace)
            result.faults += played.faults
            if played.violations:
                result.broken.append(played)
    result.cpu_seconds = time.process_time() - begun
    return result


def report(played: Played) -> str:
    """A schedule as text: every event in order, then its violations."""
    begin = played.trace[0].at or 0.0 if played.trace else 0.0
    lines = [
        f"{(event.at or 0.0) - begin:10.6f}  {event.phase:7} {event.name:20} {event.id or '':12} {event.holder or ''}"
        + (f"  version {event.version}" if event.version is not None else "")
        + (f"  until {event.until - begin:.6f}" if event.until is not None else "")
        for event in played.trace
    ]
    verdict = "\n".join(map(str, played.violations)) or "no violation"
    head = f"seed {played.seed}: {played.kind}, {played.steps} steps, {played.seconds:.1f} virtual seconds"
    return "\n".join([head, *lines, "", verdict])


def complaint(played: Played) -> str:
    """One line per broken schedule, with the command that replays it."""
    first = played.violations[0]
    return f"seed {played.seed} ({played.kind}): {first.kind}: {first.message}\n    make simulate SEED={played.seed}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="make simulate", description=__doc__)
    parser.add_argument("--seed", type=int, help="play this one and show it")
    parser.add_argument("--count", type=int, default=20_000, help="how many seeds to play")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    if options.seed is not None:
        with quiet():
            played = play(options.seed)
        print(report(played))
        return 1 if played.violations else 0
    total = Tally()
    for part in _parts(options.first, options.count, options.processes):
        total.add(part)
        for played in part.broken:
            print(complaint(played), flush=True)
        if (
            total.schedules == options.count
            or total.schedules % (max(options.count // 20, CHUNK) // CHUNK * CHUNK) == 0
        ):
            print(
                f"{total.schedules:>12,} of {options.count:,}, {len(total.broken)} violated", file=sys.stderr
            )
    print(total)
    return 1 if total.broken else 0


def _parts(first: int, count: int, processes: int) -> Iterator[Tally]:
    chunks = ((at, min(CHUNK, first + count - at)) for at in range(first, first + count, CHUNK))
    if processes == 1:
        yield from (tally(*chunk) for chunk in chunks)
        return
    with ProcessPoolExecutor(processes) as pool:
        # Submit a few ahead of the workers, not all of a million.
        waiting = [pool.submit(tally, *chunk) for chunk in islice(chunks, 2 * processes)]
        while waiting:
            yield waiting.pop(0).result()
            waiting += [pool.submit(tally, *chunk) for chunk in islice(chunks, 1)]


if __name__ == "__main__":
    sys.exit(main())
