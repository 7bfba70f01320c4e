"""Which schema version fits, the steps from one version to another, and that all statements are loaded."""

from __future__ import annotations

import re

import pytest

from conquiet.jobs import JobConfigError, SchemaVersionError
from conquiet.jobs.backends.schema import check_version, steps
from conquiet.jobs.backends.sql_files import Migration, load, migrations

STEPS = [Migration(number, f"{number:04}_step", f"up {number}", f"down {number}") for number in (1, 2, 3)]


@pytest.mark.parametrize("migrate", ["auto", "never"])
def test_the_newest_version_fits(migrate: str) -> None:
    assert check_version(3, 3, "here", migrate) is False


def test_an_empty_database_is_filled_if_wanted() -> None:
    assert check_version(None, 3, "here", "auto") is True
    with pytest.raises(
        SchemaVersionError, match=r"here has no job tables: call conquiet.jobs.migrate\(dsn\)"
    ):
        check_version(None, 3, "here", "never")


@pytest.mark.parametrize("migrate", ["auto", "never"])
@pytest.mark.parametrize(
    ("found", "told"), [(2, "needs 3.*migrate"), (1, "needs 3.*migrate"), (4, "upgrade conquiet")]
)
def test_any_other_version_is_refused(found: int, told: str, migrate: str) -> None:
    with pytest.raises(SchemaVersionError, match=f"here has schema version {found}.*{told}"):
        check_version(found, 3, "here", migrate)


@pytest.mark.parametrize(
    ("found", "target", "expected"),
    [
        (0, None, [("0001_step", "up 1", 1), ("0002_step", "up 2", 2), ("0003_step", "up 3", 3)]),
        (1, 2, [("0002_step", "up 2", 2)]),
        (2, 2, []),
        (3, None, []),
        (3, 1, [("0003_step (down)", "down 3", 2), ("0002_step (down)", "down 2", 1)]),
        (1, 0, [("0001_step (down)", "down 1", 0)]),
    ],
)
def test_the_way_up_and_down(found: int, target: int | None, expected: list[tuple[str, str, int]]) -> None:
    assert steps(STEPS, found, target) == expected


@pytest.mark.parametrize("target", [-1, 4, True, "2", 1.0])
def test_there_is_no_way_to_what_does_not_exist(target: int) -> None:
    with pytest.raises(JobConfigError, match=r"0 \(none\) to 3"):
        steps(STEPS, 1, target)


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_migrations_are_numbered_without_gaps_and_go_both_ways(store: str) -> None:
    found = migrations(store)
    assert [step.version for step in found] == list(range(1, len(found) + 1))
    assert all(step.up.strip() and step.down.strip() for step in found)


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
        assert shared | {"prune", "promote", "next_due"} <= set(statements)
        assert not any("{columns}" in text for text in statements.values())
    assert [step.name for step in migrations("sqlite")] == [step.name for step in migrations("postgres")]


@pytest.mark.clause("J-25")
def test_postgresql_never_asks_for_the_time_at_which_a_transaction_began() -> None:
    for text in load("postgres", columns="id").values():
        assert not re.search(
            r"\bnow\(\)|current_timestamp|statement_timestamp|localtime", text, re.IGNORECASE
        )
