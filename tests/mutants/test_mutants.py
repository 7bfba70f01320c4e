"""Every mutant of the real code is caught: by the simulation, or where that cannot reach by a quick run on a server."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from conquiet.testing.history import Violation
from tests.mutants.catalogue import MUTANTS
from tests.mutants.hunt import first_violation
from tests.mutants.mutation import Edit, Mutant, PlaceNotFoundError
from tests.mutants.on_postgres import play_postgres
from tests.simulation.play import quiet


@dataclass
class Catch:
    violations: list[Violation]
    schedules: int


_caught: dict[str, Catch | None] = {}


def catch(mutant: Mutant, request: pytest.FixtureRequest) -> Catch | None:
    """How the mutant was caught. Found out once in a run."""
    if mutant.name not in _caught:
        dsn = request.getfixturevalue("postgres_dsn") if mutant.run == "postgres" else None
        with quiet(), mutant.applied():
            if dsn is not None:
                found = play_postgres(dsn)
                _caught[mutant.name] = Catch(found, 1) if found else None
            else:
                played = first_violation(mutant.run, mutant.most_seeds)
                _caught[mutant.name] = None if played is None else Catch(played.violations, played.seed + 1)
    return _caught[mutant.name]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_mutant_is_caught(mutant: Mutant, request: pytest.FixtureRequest) -> None:
    assert catch(mutant, request) is not None, f"{mutant.most_seeds} schedules, and nobody noticed"


def test_all_of_them_are_caught(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> None:
    """Publishes the figure."""
    found = [(mutant, catch(mutant, request)) for mutant in MUTANTS]
    caught = [(mutant, by) for mutant, by in found if by is not None]
    schedules = sorted(by.schedules for _, by in caught)
    with capsys.disabled():
        print(f"\nmutants: {len(caught)} of {len(MUTANTS)} caught", end="")
        print(f", half of them within {schedules[len(schedules) // 2]} schedules, all within {schedules[-1]}")
    assert len(MUTANTS) >= 20
    assert len(caught) == len(MUTANTS)


def test_the_real_code_passes_the_run_on_postgresql(postgres_dsn: str) -> None:
    assert play_postgres(postgres_dsn) == []


def test_the_names_are_unique() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_real_code_is_back_afterwards(mutant: Mutant) -> None:
    """Applied twice: the second time the places are again what they were."""
    with mutant.applied():
        pass
    with mutant.applied():
        pass


@pytest.mark.parametrize(
    "edit",
    [
        Edit("conquiet.jobs.memory:MemoryBackend._held", "this text is not there", ""),
        Edit("conquiet.jobs.memory:MemoryBackend._held", "entry", ""),
        Edit("conquiet.jobs.memory:MemoryBackend.gone", "x", "y"),
        Edit("conquiet.jobs.memory:Gone.claim", "x", "y"),
        Edit("conquiet.jobs.postgres:_SQL[gone]", "x", "y"),
        Edit("conquiet.jobs.postgres:_GONE[ack]", "x", "y"),
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
        raise AssertionError("nothing was changed, and nobody said so")
