"""The real code under simulated faults: thousands of schedules, each of which can be replayed by its seed."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.campaign import campaign_size
from tests.faults.figures import Record
from tests.mutants.catalogue import MUTANTS
from tests.mutants.hunt import first_catch
from tests.simulation.__main__ import Tally, complaint, report, tally
from tests.simulation.faults import KINDS
from tests.simulation.jobs import play_jobs
from tests.simulation.play import play, quiet
from tests.simulation.played import Played

ROOT = Path(__file__).parents[2]


@pytest.mark.campaign
@pytest.mark.timeout(600)  # 20 seconds on an idle machine
@pytest.mark.clause("J-04", "J-05", "J-10", "J-11", "J-12")
def test_no_schedule_breaks_a_promise(capsys: pytest.CaptureFixture[str], record_figure: Record) -> None:
    """Acknowledged jobs are not lost, leases have one holder, retries are counted, done is final, queues drain."""
    found = tally(0, campaign_size(100_000))
    with capsys.disabled():
        print(f"\nsimulation: {found}")
    record_figure(
        "simulated schedules of the real code (lost: violated)",
        n=found.schedules,
        lost=len(found.broken),
        faults_injected=found.faults.total(),
        schedules_per_second_and_core=round(found.schedules / max(found.cpu_seconds, 1e-9)),
    )
    assert not found.broken, "\n".join(map(complaint, found.broken))


@pytest.mark.parametrize(
    ("seed", "kind"),
    [
        (2_033_100, "reconciling"),  # a due time in whole microseconds, reached a fraction of one early
        (586_250, "jobs in transactions"),  # an ack found the file locked, where it cannot wait
        (969_050, "jobs in transactions"),  # the same
    ],
)
def test_what_was_a_false_alarm_is_none(seed: int, kind: str) -> None:
    with quiet():
        played = play(seed)
    assert played.kind == kind
    assert played.violations == []


def digest(seeds: range) -> str:
    """Everything that happens in these schedules, as one number."""
    total = hashlib.sha256()
    with quiet():
        for seed in seeds:
            played = play(seed)
            total.update(
                repr((played.trace, played.steps, played.seconds, sorted(played.faults.items()))).encode()
            )
    return total.hexdigest()


@pytest.mark.parametrize("seed", [0, 5, 7, 17, 50, 100])
def test_a_seed_gives_the_same_trace_every_time(seed: int) -> None:
    with quiet():
        first, second = play(seed), play(seed)
    assert first.trace
    assert first == second


def test_a_seed_gives_the_same_trace_in_another_process() -> None:
    """There sets have another order, too."""
    code = "from tests.simulation.test_simulation import digest; print(digest(range(95, 130)))"
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert digests == {digest(range(95, 130)) + "\n"}


def test_different_seeds_are_different_schedules() -> None:
    with quiet():
        traces = {repr(play(seed).trace) for seed in range(100)}
    assert len(traces) == 100


def test_everything_that_can_go_wrong_does() -> None:
    """A simulation that injects nothing finds nothing."""
    faults: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    names: Counter[tuple[str, str]] = Counter()
    claimants: Counter[str] = Counter()
    with quiet():
        for seed in range(700):
            played = play(seed)
            faults += played.faults
            kinds[played.kind] += 1
            names.update((event.phase, event.name) for event in played.trace)
            claimants.update(
                (event.holder or "").split()[0]
                for event in played.trace
                if event.name == "claim" and event.holder
            )
    assert set(KINDS) | {"kill", "pause", "stop", "a person's move", "error at statement"} <= set(faults)
    assert set(kinds) == {"jobs", "jobs on SQLite", "jobs in transactions", "local", "reconciling"}
    settled = {(phase, name) for name in ("ack", "nack", "release", "heartbeat") for phase in ("ok", "fail")}
    assert settled | {("ok", "bury"), ("unknown", "enqueue"), ("fail", "enqueue")} <= set(names)
    assert {"WorkerProcess", "EngineProcess", "ProgramProcess"} <= set(claimants)


def test_a_broken_schedule_is_shown_and_played_again() -> None:
    """With a mutant, because the real code breaks no schedule."""
    (mutant,) = (one for one in MUTANTS if one.name == "a settle after the expiry is accepted")
    with quiet(), mutant.applied():
        broken = first_catch(mutant)
        assert broken is not None
        again = play_jobs(broken.seed, random.Random(broken.seed))
    assert again == broken
    assert f"make simulate SEED={broken.seed}" in complaint(broken)
    text = report(broken)
    assert text.count("\n") > len(broken.trace)
    assert "stale-settle" in text


def test_the_tally_says_what_it_proves() -> None:
    good = Tally(300, 1_000, 1.5, Counter(kill=7))
    assert "300 schedules, 1,000 events, 7 faults injected, 0 violated; 200 schedules/s per core" in str(good)
    assert "fewer than 0.01 of all schedules (3/n)" in str(good)
    good.add(Tally(1, 1, 0.1, Counter(), [Played(4, "jobs")]))
    assert "3/n" not in str(good)
