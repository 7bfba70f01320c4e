"""Schemas: created where there is none, moved up and down by `migrate`, refused where they do not fit."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from conquiet.jobs import (
    JobConfigError,
    JobError,
    JobStore,
    SchemaVersionError,
    StoreUnavailableError,
    migration_plan,
    open_store,
)
from conquiet.jobs import migrate as migrate_database
from conquiet.jobs.backends.postgres import backend as postgres_module
from conquiet.jobs.backends.sql_files import Migration
from conquiet.jobs.backends.sqlite import steps as sqlite_module
from tests.conformance.sources import Source

QUEUE = "orders"
DOWN = ["0004_notes (down)", "0003_history (down)", "0002_begun (down)", "0001_jobs (down)"]


class Database:
    """An empty database for one test, with helpers to inspect it."""

    def __init__(self, kind: str, dsn: str) -> None:
        self.kind = kind
        self.dsn = dsn
        self.module: Any = sqlite_module if kind == "sqlite" else postgres_module
        self.own_tables = {"conquiet_schema", "conquiet_jobs"}
        if kind == "postgresql":
            self.own_tables.add("conquiet_counts")

    def execute(self, sql: str) -> list[Any]:
        if self.kind == "sqlite":
            connection: Any = sqlite3.connect(self.dsn.removeprefix("sqlite:///"), isolation_level=None)
        else:
            connection = psycopg.connect(self.dsn, autocommit=True)
        try:
            cursor = connection.execute(sql)
            return cursor.fetchall() if cursor.description else []
        finally:
            connection.close()

    def tables(self) -> set[str]:
        if self.kind == "sqlite":
            rows = self.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'conquiet%'"
            )
        else:
            rows = self.execute("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")
        return {row[0] for row in rows}

    def version(self) -> int:
        ((version,),) = self.execute("SELECT version FROM conquiet_schema")
        return int(version)

    def has_other_connections(self) -> bool:
        """Return whether there are still some after a while: the server closes them a moment after the client does."""
        deadline = time.monotonic() + 20.0
        while self.execute(
            "SELECT FROM pg_stat_activity WHERE application_name = current_schema() AND pid <> pg_backend_pid()"
        ):
            if time.monotonic() > deadline:
                return True
        return False


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    if request.param == "sqlite":
        return Database("sqlite", f"sqlite:///{tmp_path}/jobs.db")
    return Database("postgresql", request.getfixturevalue("fresh_dsn"))


@pytest.fixture(params=["sync", "async"])
def source(request: pytest.FixtureRequest) -> Iterator[Source]:
    made = Source(request.getfixturevalue("loop_thread") if request.param == "async" else None)
    yield made
    made.close()


@pytest.fixture
def next_version(monkeypatch: pytest.MonkeyPatch, database: Database) -> list[Migration]:
    """A later release with one more migration."""
    step = Migration(
        4,
        "0004_notes",
        "ALTER TABLE conquiet_jobs ADD COLUMN note text; CREATE TABLE conquiet_notes (n int);",
        "DROP TABLE conquiet_notes; ALTER TABLE conquiet_jobs DROP COLUMN note;",
        4,
    )
    migrations = [*database.module._MIGRATIONS, step]
    monkeypatch.setattr(database.module, "_MIGRATIONS", migrations)
    return migrations


def test_an_empty_database_gets_the_schema(database: Database, source: Source) -> None:
    store = source.open_dsn(database.dsn)
    assert database.tables() == database.own_tables
    assert database.version() == 3
    store.enqueue(QUEUE, {}, id="a")
    again = source.open_dsn(database.dsn)
    assert again.get("a") is not None
    assert again.migrate() == []


def test_it_does_not_where_nobody_wants_it(database: Database, source: Source) -> None:
    with pytest.raises(SchemaVersionError, match="has no job tables.*migrate") as refused:
        source.open_dsn(database.dsn, migrate="never")
    assert "postgres:" not in str(refused.value).replace("postgres:***", "")
    assert database.tables() == set()
    source.open_dsn(database.dsn)
    source.open_dsn(database.dsn, migrate="never")


def test_there_are_two_ways_to_open(database: Database, source: Source) -> None:
    with pytest.raises(JobConfigError, match="'auto' or 'never', not 'always'"):
        source.open_dsn(database.dsn, migrate="always")
    assert database.tables() == set()


def test_a_newer_schema_is_refused(database: Database, source: Source) -> None:
    source.open_dsn(database.dsn).close()
    database.execute("UPDATE conquiet_schema SET version = 99, oldest = 99")
    for migrate in ("auto", "never"):
        with pytest.raises(SchemaVersionError, match="version 99, newer than the 3 .* upgrade conquiet"):
            source.open_dsn(database.dsn, migrate=migrate)
    assert database.version() == 99


def test_a_later_release_that_only_adds_columns_does_not_stop_programs_of_this_one(
    database: Database, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = source.open_dsn(database.dsn)
    before.enqueue(QUEUE, {}, id="a")
    with monkeypatch.context() as later:
        step = Migration(
            4,
            "0004_note",
            "ALTER TABLE conquiet_jobs ADD COLUMN note text NOT NULL DEFAULT 'none';",
            "ALTER TABLE conquiet_jobs DROP COLUMN note;",
            oldest=3,
        )
        later.setattr(database.module, "_MIGRATIONS", [*database.module._MIGRATIONS, step])
        assert migrate_database(database.dsn) == ["0004_note"]
    assert database.version() == 4
    for store in (before, source.open_dsn(database.dsn), source.open_dsn(database.dsn, migrate="never")):
        store.enqueue(QUEUE, {})
        (job,) = store.claim(QUEUE, limit=1)
        store.ack(job)
    assert migrate_database(database.dsn) == []
    assert migration_plan(database.dsn) == []
    with pytest.raises(SchemaVersionError, match="version 4, newer than the 3 of this release"):
        migrate_database(database.dsn, 1)  # only the release that made the step can undo it
    assert database.version() == 4


def test_a_schema_of_a_release_that_did_not_say_so_works_only_with_its_own_version(
    database: Database, source: Source, request: pytest.FixtureRequest
) -> None:
    store = source.open_dsn(database.dsn)
    database.execute("ALTER TABLE conquiet_schema DROP COLUMN oldest")
    store.enqueue(QUEUE, {}, id="a")
    assert source.open_dsn(database.dsn).get("a") is not None
    database.execute("UPDATE conquiet_schema SET version = 99")
    with pytest.raises(SchemaVersionError, match="version 99, newer than the 3 .* upgrade conquiet"):
        source.open_dsn(database.dsn)
    database.execute("UPDATE conquiet_schema SET version = 3")
    request.getfixturevalue("next_version")
    assert store.migrate() == ["0004_notes"]
    assert database.execute("SELECT version, oldest FROM conquiet_schema") == [(4, 4)]


def test_an_older_schema_is_refused_until_it_is_migrated(
    database: Database, source: Source, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    store = source.open_dsn(database.dsn)
    store.enqueue(QUEUE, {"kept": True}, id="a")
    before = store.get("a")
    request.getfixturevalue("next_version")
    for migrate in ("auto", "never"):
        with pytest.raises(SchemaVersionError, match=r"version 3, this release needs 4: .*migrate\(dsn\)"):
            source.open_dsn(database.dsn, migrate=migrate)
    assert store.migrate() == ["0004_notes"]
    assert database.version() == 4
    assert "conquiet_notes" in database.tables()
    assert source.open_dsn(database.dsn).get("a") == before
    assert store.migrate(3) == ["0004_notes (down)"]
    assert database.version() == 3
    assert "conquiet_notes" not in database.tables()
    assert store.get("a") == before


def test_a_database_is_migrated_without_opening_a_store(
    database: Database, next_version: list[Migration]
) -> None:
    assert migrate_database(database.dsn, 1) == ["0001_jobs"]
    assert migrate_database(database.dsn) == ["0002_begun", "0003_history", "0004_notes"]
    assert migrate_database(database.dsn) == []
    assert migrate_database(database.dsn, 0) == DOWN
    database.execute("UPDATE conquiet_schema SET version = 99, oldest = 99")
    with pytest.raises(SchemaVersionError, match="99, newer than the 4 of this release"):
        migrate_database(database.dsn)
    if database.kind == "postgresql":
        assert not database.has_other_connections()


def test_down_to_nothing_and_up_again(
    database: Database, source: Source, next_version: list[Migration]
) -> None:
    store = source.open_dsn(database.dsn)
    store.enqueue(QUEUE, {})
    assert store.migrate(0) == DOWN
    assert "conquiet_jobs" not in database.tables()
    with pytest.raises(SchemaVersionError, match="has no job tables"):
        source.open_dsn(database.dsn, migrate="never")
    assert store.migrate() == ["0001_jobs", "0002_begun", "0003_history", "0004_notes"]
    assert store.list() == []
    store.enqueue(QUEUE, {})
    assert store.migrate(0) == DOWN
    assert source.open_dsn(database.dsn).list() == []  # empty again
    assert database.version() == 4


TEXT_SCHEMA = "DROP TABLE conquiet_schema; CREATE TABLE conquiet_schema (version text)"
DAMAGES = {
    "empty": ("DELETE FROM conquiet_schema", "no row"),
    "two rows": ("INSERT INTO conquiet_schema VALUES (3, 3)", "several rows"),
    "negative": ("UPDATE conquiet_schema SET version = -1", r"\(-1, 3\)"),
    "three columns": ("ALTER TABLE conquiet_schema ADD COLUMN note int", r"\(3, 3, None\)"),
    "for later releases": ("UPDATE conquiet_schema SET oldest = 4", r"\(3, 4\)"),
    "another table": (TEXT_SCHEMA, "no row"),
    "a text": (f"{TEXT_SCHEMA}; INSERT INTO conquiet_schema VALUES ('one')", r"\('one',\)"),
}


@pytest.mark.parametrize(("damage", "found"), DAMAGES.values(), ids=DAMAGES)
def test_a_schema_that_says_no_version_is_refused(
    database: Database, source: Source, damage: str, found: str
) -> None:
    store = source.open_dsn(database.dsn)
    store.enqueue(QUEUE, {}, id="a")
    for statement in damage.split("; "):
        database.execute(statement)
    for refused in (
        lambda: source.open_dsn(database.dsn),
        lambda: migrate_database(database.dsn),
        lambda: migration_plan(database.dsn),
        lambda: store.migrate(),
    ):
        with pytest.raises(
            SchemaVersionError, match=f"conquiet_schema with {found}; one row .* restore it from a backup"
        ) as said:
            refused()
        assert "postgres:" not in str(said.value).replace("postgres:***", "")
    assert store.get("a") is not None


def test_down_to_nothing_where_there_is_nothing(database: Database, source: Source) -> None:
    assert migrate_database(database.dsn, 0) == []
    assert source.open_dsn(database.dsn).list() == []
    assert database.version() == 3


@pytest.mark.parametrize("target", [-1, 4, True, "1", 1.0])
def test_a_version_that_does_not_exist_is_refused(database: Database, source: Source, target: Any) -> None:
    store = source.open_dsn(database.dsn)
    with pytest.raises(JobConfigError, match=r"no schema version .* 0 \(none\) to 3"):
        store.migrate(target)
    assert database.version() == 3
    assert store.list() == []


def test_a_step_that_fails_leaves_everything_as_it_was(
    database: Database, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = source.open_dsn(database.dsn)
    store.enqueue(QUEUE, {}, id="a")
    broken = Migration(4, "0004_broken", "CREATE TABLE conquiet_notes (n int); THIS IS NOT SQL;", "", 4)
    monkeypatch.setattr(database.module, "_MIGRATIONS", [*database.module._MIGRATIONS, broken])
    with pytest.raises(StoreUnavailableError, match="syntax error"):
        store.migrate()
    assert database.version() == 3
    assert database.tables() == database.own_tables
    assert store.get("a") is not None


def test_a_store_that_was_refused_leaves_no_connection_behind(
    database: Database, source: Source, tmp_path: Path
) -> None:
    for options in ({"migrate": "never"}, {"migrate": "sometimes"}):
        with pytest.raises((SchemaVersionError, JobConfigError)):
            source.open_dsn(database.dsn, **options)
    if database.kind == "postgresql":
        assert not database.has_other_connections()
    else:  # the last connection to close removes the write-ahead log
        assert not list(tmp_path.glob("jobs.db-*"))


def test_a_store_is_closed_at_the_end_of_its_block(database: Database) -> None:
    with open_store(database.dsn) as store:
        assert isinstance(store, JobStore)
        store.enqueue(QUEUE, {})
    with pytest.raises(JobError, match="is closed"):
        store.list()
    if database.kind == "postgresql":
        assert not database.has_other_connections()
