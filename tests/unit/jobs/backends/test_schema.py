"""Which schema version fits, the steps from one version to another, and that all statements are loaded."""

from __future__ import annotations

import re
from typing import Any

import pytest

from conquiet.jobs import JobConfigError, SchemaVersionError
from conquiet.jobs.backends.schema import Stored, check_version, steps, stored_version
from conquiet.jobs.backends.sql_files import Migration, load, migrations

STEPS = [
    Migration(number, f"{number:04}_step", f"up {number}", f"down {number}", oldest)
    for number, oldest in ((1, 1), (2, 2), (3, 2))
]


@pytest.mark.parametrize("migrate", ["auto", "never"])
@pytest.mark.parametrize("found", [Stored(3, 3), Stored(3, 1), Stored(4, 3), Stored(9, 2)])
def test_a_version_fits_if_it_works_with_programs_of_this_one(found: Stored, migrate: str) -> None:
    assert check_version(found, STEPS, "here", migrate) is False


def test_an_empty_database_is_filled_if_wanted() -> None:
    assert check_version(None, STEPS, "here", "auto") is True
    with pytest.raises(
        SchemaVersionError, match=r"here has no job tables: call conquiet.jobs.migrate\(dsn\)"
    ):
        check_version(None, STEPS, "here", "never")


@pytest.mark.parametrize("migrate", ["auto", "never"])
@pytest.mark.parametrize(
    ("found", "told"),
    [
        (Stored(2, 2), "2, this release needs 3: call conquiet.jobs.migrate"),
        (Stored(2, 1), "2, this release needs 3: call conquiet.jobs.migrate"),
        (Stored(1, 1), "1, this release needs 3: stop the workers and call conquiet.jobs.migrate"),
        (Stored(4, 4), "4, newer than the 3 of this release: upgrade conquiet"),
        (Stored(9, 4), "9, newer than the 3 of this release: upgrade conquiet"),
    ],
)
def test_any_other_version_is_refused(found: Stored, told: str, migrate: str) -> None:
    with pytest.raises(SchemaVersionError, match=f"here has schema version {told}"):
        check_version(found, STEPS, "here", migrate)


@pytest.mark.parametrize(
    ("rows", "found"),
    [([(0,)], None), ([(2,)], (2, 2)), ([(0, 0)], None), ([(2, 2)], (2, 2)), ([(5, 3)], (5, 3))],
)
def test_what_the_table_says(rows: list[tuple[int, ...]], found: tuple[int, int] | None) -> None:
    assert stored_version(rows, "here") == found


@pytest.mark.parametrize("rows", [[], [(1, 1), (1, 1)], [(2, 3)], [(2, None)], [(2, 2, 2)], [(True,)], [()]])
def test_a_table_that_says_something_else_is_refused(rows: list[tuple[Any, ...]]) -> None:
    with pytest.raises(SchemaVersionError, match="one row with the version of the schema was expected"):
        stored_version(rows, "here")


@pytest.mark.parametrize(
    ("found", "target", "expected"),
    [
        (None, None, [("0001_step", "up 1", 1, 1), ("0002_step", "up 2", 2, 2), ("0003_step", "up 3", 3, 2)]),
        (1, 2, [("0002_step", "up 2", 2, 2)]),
        (2, 2, []),
        (3, None, []),
        (3, 1, [("0003_step (down)", "down 3", 2, 2), ("0002_step (down)", "down 2", 1, 1)]),
        (1, 0, [("0001_step (down)", "down 1", 0, 0)]),
    ],
)
def test_the_way_up_and_down(
    found: int | None, target: int | None, expected: list[tuple[str, str, int, int]]
) -> None:
    assert steps(STEPS, None if found is None else Stored(found, found), target) == expected


def test_a_newer_schema_stays_as_it_is() -> None:
    assert steps(STEPS, Stored(4, 3), None) == []
    for found, target in ((Stored(4, 4), None), (Stored(4, 3), 3)):
        with pytest.raises(SchemaVersionError, match="version 4, newer than the 3 of this release"):
            steps(STEPS, found, target)


@pytest.mark.parametrize("target", [-1, 4, True, "2", 1.0])
def test_there_is_no_way_to_what_does_not_exist(target: int) -> None:
    with pytest.raises(JobConfigError, match=r"0 \(none\) to 3"):
        steps(STEPS, Stored(1, 1), target)


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_migrations_are_numbered_without_gaps_and_go_both_ways(store: str) -> None:
    found = migrations(store)
    assert [step.version for step in found] == list(range(1, len(found) + 1))
    assert all(step.up.strip() and step.down.strip() for step in found)
    assert all(1 <= step.oldest <= step.version for step in found)


def test_both_databases_have_the_same_statements_and_versions() -> None:
    shared = {
        "insert",
        "existing",
        "claim",
        "settle",
        "heartbeat",
        "get",
        "select",
        "stats",
        "retry",
        "discard",
    }
    for store in ("sqlite", "postgres"):
        statements = load(store, columns="id")
        assert shared | {"prune", "claim_ready", "next_due"} <= set(statements)
        assert not any("{columns}" in text for text in statements.values())
    assert [step.name for step in migrations("sqlite")] == [step.name for step in migrations("postgres")]


@pytest.mark.clause("J-25")
def test_postgresql_never_asks_for_the_time_at_which_a_transaction_began() -> None:
    for text in load("postgres", columns="id").values():
        assert not re.search(
            r"\bnow\(\)|current_timestamp|statement_timestamp|localtime", text, re.IGNORECASE
        )
