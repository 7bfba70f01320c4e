"""Which store a DSN names; an ephemeral one is never chosen by accident."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from conquiet.jobs import JobConfigError, open_async_store, open_store
from conquiet.jobs.backends.registry import without_driver

WRONG = [
    "",
    "memory",
    "memory:",
    "memory:///",
    "memory://x",
    "memory://localhost/jobs",
    "jobs.db",
    "/var/lib/jobs.db",
    "sqlite:",
    "sqlite://",
    "sqlite:///",
    "sqlite://jobs.db",
    "sqlite:///:memory:",
    "sqlite:///jobs.db?synchronous=OFF",
    "sqlite:///jobs.db?mode=memory",
    "postgresql+pg8000://app:hunter2@db/jobs",
    "postgresql+://app:hunter2@db/jobs",
    "sqlite+asyncpg:///jobs.db",
    "sqlite+aiosqlite://",
    "sqlite+aiosqlite:///:memory:",
    "mysql://app:hunter2@db/jobs",
    "postgresq://app:hunter2@db/jobs",
]
EPHEMERAL = ["sqlite:///?synchronous=FULL", "sqlite:///%3Amemory%3A", "sqlite:///:memory:?synchronous=NORMAL"]


@pytest.mark.clause("J-24")
@pytest.mark.parametrize("dsn", WRONG)
def test_what_names_no_store_is_refused_with_what_would(dsn: str) -> None:
    for attempt in (lambda: open_store(dsn), lambda: asyncio.run(open_async_store(dsn))):
        with pytest.raises(JobConfigError) as refused:
            attempt()
        message = str(refused.value)
        assert "sqlite:///jobs.db" in message
        assert "postgresql://user:password@host/database" in message
        assert "memory:// for tests (nothing survives the process)" in message
        assert "hunter2" not in message
        assert "\n" not in message


@pytest.mark.clause("J-24")
@pytest.mark.parametrize("dsn", EPHEMERAL)
def test_sqlite_without_a_file_is_refused(dsn: str) -> None:
    """SQLite would open a database in memory, or one that is deleted on close."""
    with pytest.raises(JobConfigError, match="sqlite:///jobs.db"):
        open_store(dsn)


@pytest.mark.clause("J-24")
def test_the_memory_store_says_that_it_forgets() -> None:
    with open_store("memory://") as store:
        assert store.capabilities.name == "memory"
        assert not store.capabilities.durable
        assert not store.capabilities.shared
        store.enqueue("orders", {}, id="a")
    with open_store("memory://") as store:
        assert store.list() == []


@pytest.mark.clause("J-24")
def test_the_others_say_that_they_do_not(tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path}/jobs.db") as store:
        assert store.capabilities.durable
        assert store.capabilities.shared
        assert store.capabilities.joins_transactions
        assert not store.capabilities.own_clock


def test_paths_are_relative_or_absolute_and_may_be_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deep").mkdir()
    for dsn, path in [
        ("sqlite:///jobs.db", "jobs.db"),
        ("sqlite:///deep/jobs.db?synchronous=NORMAL", "deep/jobs.db"),
        ("sqlite:///two%20words%3F.db", "two words?.db"),
        (f"sqlite:///{tmp_path}/absolute.db", "absolute.db"),
    ]:
        open_store(dsn).close()
        assert (tmp_path / path).exists()


@pytest.mark.clause("J-21")
@pytest.mark.parametrize(
    ("options", "level"), [("", 2), ("?synchronous=FULL", 2), ("?synchronous=NORMAL", 1)]
)
def test_sqlite_syncs_every_commit_unless_told_otherwise(tmp_path: Path, options: str, level: int) -> None:
    with open_store(f"sqlite:///{tmp_path}/jobs.db{options}") as store:
        connection = store.operations.backend._connection  # type: ignore[attr-defined]
        assert connection.execute("PRAGMA synchronous").fetchone() == (level,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.parametrize("expiries", [0, -1, True, 1.0, "20", None])
def test_a_bound_of_lease_expiries_that_makes_no_sense_is_refused(expiries: object) -> None:
    with pytest.raises(JobConfigError, match="max_lease_expiries"):
        open_store("memory://", max_lease_expiries=expiries)  # type: ignore[arg-type]


@pytest.mark.parametrize("dsn", [None, b"memory://", Path("jobs.db")])
def test_what_is_not_text_is_refused(dsn: object) -> None:
    with pytest.raises(JobConfigError, match="dsn must be a str such as 'sqlite:///jobs.db', not "):
        open_store(dsn)  # type: ignore[arg-type]


@pytest.mark.parametrize("items", [None, 5, {"one": "payload"}, "text"])
def test_what_is_not_a_series_of_payloads_is_refused(items: object) -> None:
    with open_store("memory://") as store, pytest.raises(JobConfigError, match="items must be payloads or"):
        store.enqueue_many("q", items)  # type: ignore[arg-type]


@pytest.mark.parametrize("driver", ["pysqlite", "aiosqlite"])
def test_the_url_of_an_engine_of_sqlalchemy_names_the_same_file(tmp_path: Path, driver: str) -> None:
    with open_store(f"sqlite:///{tmp_path}/jobs.db") as store:
        store.enqueue("a", {})
    with open_store(f"sqlite+{driver}:///{tmp_path}/jobs.db?synchronous=NORMAL", migrate="never") as again:
        assert len(again.list()) == 1


@pytest.mark.parametrize(
    ("url", "dsn"),
    [
        ("postgresql+psycopg://ann@db/jobs?sslmode=require", "postgresql://ann@db/jobs?sslmode=require"),
        ("postgresql+psycopg_async://db/jobs", "postgresql://db/jobs"),
        ("postgresql+psycopg2://db/jobs", "postgresql://db/jobs"),
        ("postgresql+asyncpg://ann@db:5432/jobs", "postgresql://ann@db:5432/jobs"),
        (
            "postgresql+asyncpg://db/jobs?ssl=require&user=ann",
            "postgresql://db/jobs?sslmode=require&user=ann",
        ),
        ("postgresql+asyncpg://db/jobs?prepared_statement_cache_size=0", "postgresql://db/jobs"),
    ],
)
def test_the_urls_of_postgresql_are_read_as_sqlalchemy_reads_them(url: str, dsn: str) -> None:
    assert without_driver(url) == dsn
