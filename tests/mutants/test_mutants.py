"""Every mutant of the real code is caught: by the simulation, or where it cannot reach, by a quick run on a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from conquiet.embedded import RedisServer
from conquiet.verify.history import Violation
from tests.faults.figures import Record
from tests.mutants.catalogue import MUTANTS
from tests.mutants.hunt import first_catch
from tests.mutants.mutation import Edit, Mutant, PlaceNotFoundError
from tests.mutants.on_engine import play_engine
from tests.mutants.on_postgres import play_postgres
from tests.mutants.on_redis import SCENARIOS, play_queue
from tests.mutants.on_spark import RUNS, play_spark
from tests.simulation.play import quiet

# In one process: what caught a mutant is determined once, and reported for all at the end.
pytestmark = pytest.mark.one_process


@dataclass
class Catch:
    violations: list[Violation]
    schedules: int | None = None  # played until then; None for a single run


_caught: dict[str, Catch | None] = {}


@pytest.fixture(scope="module")
def own_redis() -> Iterator[str]:
    with RedisServer() as server:
        yield server.url


def catch(mutant: Mutant, request: pytest.FixtureRequest) -> Catch | None:
    """How the mutant was caught, determined once per run."""
    if mutant.name not in _caught:
        folder: Path = request.getfixturevalue("tmp_path")
        if mutant.run == "postgres":
            dsn = request.getfixturevalue("postgres_dsn")
            _caught[mutant.name] = _catch_in_one_run(mutant, lambda: play_postgres(dsn, folder))
        elif mutant.run in RUNS:
            url, dsn = (request.getfixturevalue(name) for name in ("own_redis", "postgres_dsn"))
            _caught[mutant.name] = _catch_in_one_run(mutant, lambda: play_spark(mutant.run, url, dsn, folder))
        elif mutant.run == "engine":
            _caught[mutant.name] = _catch_in_one_run(mutant, play_engine)
        elif mutant.run in SCENARIOS:
            url = request.getfixturevalue("own_redis")
            folder = folder / str(len(_caught))  # one history each
            folder.mkdir()
            _caught[mutant.name] = _catch_in_one_run(mutant, lambda: play_queue(url, mutant.run, folder))
        else:
            with quiet(), mutant.applied():
                played = first_catch(mutant)
            _caught[mutant.name] = None if played is None else Catch(played.violations, played.seed + 1)
    return _caught[mutant.name]


def _catch_in_one_run(mutant: Mutant, play: Callable[[], list[Violation]]) -> Catch | None:
    with quiet(), mutant.applied():
        found = play()
    return Catch(found) if mutant.is_seen_in(found) else None


@pytest.mark.campaign
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_mutant_is_caught(mutant: Mutant, request: pytest.FixtureRequest) -> None:
    assert catch(mutant, request) is not None, f"no run showed its bug: {', '.join(mutant.expects)}"


@pytest.mark.campaign
def test_all_of_them_are_caught(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], record_figure: Record
) -> None:
    """Publishes the figure."""
    found = [(mutant, catch(mutant, request)) for mutant in MUTANTS]
    caught = [(mutant, by) for mutant, by in found if by is not None]
    schedules = sorted(by.schedules for _, by in caught if by.schedules is not None)
    with capsys.disabled():
        print(f"\nmutants: {len(caught)} of {len(MUTANTS)} caught", end="")
        print(f", half of them within {schedules[len(schedules) // 2]} schedules, all within {schedules[-1]}")
    record_figure(
        "mutants of the real code (lost: not caught)",
        n=len(MUTANTS),
        lost=len(MUTANTS) - len(caught),
        caught=f"{len(caught)} of {len(MUTANTS)}",
        schedules_until_caught=f"half within {schedules[len(schedules) // 2]}, all within {schedules[-1]}",
        whole=True,
    )
    assert len(MUTANTS) >= 20
    assert len(caught) == len(MUTANTS)


def test_the_real_code_passes_the_run_on_postgresql(postgres_dsn: str, tmp_path: Path) -> None:
    assert play_postgres(postgres_dsn, tmp_path) == []


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_real_code_passes_the_runs_on_redis(own_redis: str, scenario: str, tmp_path: Path) -> None:
    assert play_queue(own_redis, scenario, tmp_path) == []


@pytest.mark.parametrize("run", RUNS)
def test_the_real_code_passes_the_runs_of_spark(
    own_redis: str, postgres_dsn: str, run: str, tmp_path: Path
) -> None:
    assert play_spark(run, own_redis, postgres_dsn, tmp_path) == []


def test_the_real_code_passes_the_scenarios_of_the_engine() -> None:
    assert play_engine() == []


def test_the_names_are_unique() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_real_code_is_back_afterwards(mutant: Mutant) -> None:
    """Applied twice: the second time the places hold the original text again."""
    with mutant.applied():
        pass
    with mutant.applied():
        pass


@pytest.mark.parametrize(
    "edit",
    [
        Edit("conquiet.jobs.backends.memory:MemoryBackend._held", "this text is not there", ""),
        Edit("conquiet.jobs.backends.memory:MemoryBackend._held", "entry", ""),
        Edit("conquiet.jobs.backends.memory:MemoryBackend.gone", "x", "y"),
        Edit("conquiet.jobs.backends.memory:Gone.claim", "x", "y"),
        Edit("conquiet.jobs.backends.postgres.backend:_SQL[gone]", "x", "y"),
        Edit("conquiet.jobs.backends.postgres.backend:_GONE[ack]", "x", "y"),
    ],
    ids=[
        "no such text",
        "text twice",
        "no such method",
        "no such class",
        "no such statement",
        "no such table",
    ],
)
def test_a_mutant_whose_place_is_gone_fails_loudly(edit: Edit) -> None:
    lost = replace(MUTANTS[0], edits=(edit,))
    with pytest.raises(PlaceNotFoundError), lost.applied():
        raise AssertionError("nothing was changed, and no error was raised")
