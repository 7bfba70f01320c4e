"""migrate, enqueue and jobs, on SQLite and PostgreSQL."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from conquiet.jobs import JobState, RetrySchedule, open_store
from tests.acceptance.cli.command import Shell


@pytest.fixture(params=["sqlite", "postgresql"])
def dsn(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    return str(request.getfixturevalue("postgres_dsn"))


def with_failed_jobs(dsn: str, *ids: str) -> None:
    """Jobs of the queue "reports" that have failed for good, and one Ready job."""
    with open_store(dsn, retry=RetrySchedule(max_retries=0)) as store:
        for job_id in ids:
            store.enqueue("reports", {"month": 13}, id=job_id)
        for job in store.claim("reports", limit=len(ids), worker="printer"):
            store.nack(job, ValueError("there is no month 13"))
        store.enqueue("emails", {"to": "ann"}, id="mail")


def test_from_nothing_to_jobs_that_can_be_looked_at(shell: Shell, dsn: str) -> None:
    shell.environment["DATABASE_URL"] = dsn
    stats, enqueued, planned, listed, migrated, again = shell.each(
        "jobs stats",
        "enqueue emails {}",
        "migrate --dry-run --show-sql",
        "jobs list",
        "migrate --json",
        "migrate",
    )
    stats.refused(5, "conquiet migrate")
    enqueued.refused(5, "conquiet migrate")
    assert "CREATE TABLE conquiet_jobs" in planned.out
    listed.refused(5)  # it was only planned
    assert migrated.json["taken"] == ["0001_jobs", "0002_begun", "0003_history"]
    assert again.out == "nothing to do\n"

    mail = '{"to": "ann@example.com"}'
    assert shell("enqueue", "emails", mail, "--id", "mail", "--priority", "1", "--delay", "60").code == 0
    many = shell("enqueue", "reports", "-", "--json", stdin='{"month": 1}\n\n{"month": 2}\n').json
    assert len(many["ids"]) == 2
    stats = shell("jobs", "stats", "--json")
    twice, as_json, shown, listed, ready = shell.each(
        "enqueue emails {} --id mail",
        "jobs show mail --json",
        "jobs show mail",
        "jobs list --queue reports --limit 1 --oldest --json",
        "jobs list --state ready",
    )
    twice.refused(1, "'mail' exists")
    job = as_json.json
    assert (job["payload"], job["priority"], job["state"]) == (json.loads(mail), 1, "Ready")
    assert mail in shown.out
    counts = {"ready": 0, "delayed": 0, "in_flight": 0, "expired": 0, "failed": 0, "succeeded": 0}
    assert stats.json == {"emails": counts | {"delayed": 1}, "reports": counts | {"ready": 2}}
    assert [job["id"] for job in listed.json] == many["ids"][:1]
    assert "mail" in ready.out


def test_what_failed_is_shown_retried_and_discarded(shell: Shell, postgres_dsn: str) -> None:
    dsn = postgres_dsn
    shell.environment["CONQUIET_DSN"] = dsn
    with_failed_jobs(dsn, "r1", "r2", "r3")
    listed = shell("jobs", "list", "--state", "Failed")
    assert "there is no month 13" in listed.out
    assert "r2" in listed.out
    assert "mail" not in listed.out
    assert shell("jobs", "retry", "r1", "--json").json == {"retried": ["r1"], "refused": []}
    shown, some, discarded, unsure, rest = shell.each(
        "jobs show r1",
        "jobs retry r2 mail nobody",
        "jobs discard mail",
        "jobs discard --failed",
        "jobs discard --failed --queue reports --yes --json",
    )
    assert "ValueError" in shown.out
    assert (some.code, some.out) == (1, "retried: 1\n")
    assert "'mail' is Ready" in some.err
    assert "no job 'nobody'" in some.err
    assert discarded.out == "discarded: 1\n"
    unsure.refused(2, "--yes")
    assert rest.json["discarded"] == ["r3"]
    with open_store(dsn) as store:
        assert {job.id: job.state for job in store.list()} == {"r1": JobState.READY, "r2": JobState.READY}


def test_all_that_failed_is_retried_at_once(shell: Shell, tmp_path: Path) -> None:
    dsn = f"sqlite:///{tmp_path}/jobs.db"
    with_failed_jobs(dsn, *(f"r{number}" for number in range(5)))
    first, second = shell.each(*["jobs retry --failed"] * 2, DATABASE_URL=dsn)
    assert (first.out, second.out) == ("retried: 5\n", "retried: 0\n")


def test_what_cannot_be_meant_is_refused(shell: Shell, tmp_path: Path) -> None:
    dsn = f"sqlite:///{tmp_path}/jobs.db"
    with_failed_jobs(dsn, "r1")
    shell.environment["CONQUIET_DSN"] = dsn
    shell("jobs", "discard", "nobody").refused(1, "no job 'nobody'")
    shell("enqueue", "emails", "-", stdin='{"a": 1}\n{"a"\n').refused(2, "line 2 of standard input")
    shell.refuses(
        {
            "jobs list --queue repotrs": (1, "'repotrs'", "emails, reports"),
            "jobs stats --queue repotrs": (1, "emails, reports"),
            "jobs list --state broken": (2, "Ready, InFlight, Failed, Succeeded"),
            "jobs list --older-than soon": (2, "--older-than must be a duration above 0"),
            "jobs list --newer-than -1h": (2, "--newer-than must be a duration above 0"),
            "jobs show nobody": (1, "no job 'nobody'", "conquiet jobs list"),
            "jobs retry": (2, "--failed"),
            "jobs retry r1 --queue reports": (2, "--queue is used with --failed"),
            "enqueue emails '[1, 2]'": (2, "a JSON object was expected, not an array"),
            "enqueue emails '{'": (2, "not UTF-8 JSON"),
            "enqueue emails - --id x": (2, "--id names one job"),
            "enqueue '' '{}'": (2, "queue must be a non-empty str"),
        }
    )
    with open_store(dsn) as store:
        assert len(store.list()) == 2  # none of these was enqueued


def test_of_many_lines_those_before_the_wrong_one_are_told(shell: Shell, tmp_path: Path) -> None:
    dsn = f"sqlite:///{tmp_path}/jobs.db"
    open_store(dsn).close()
    lines = '{"a": 1}\n' * 1_000 + '{"a": 2}\nwrong\n'
    done = shell("enqueue", "emails", "-", "--dsn", dsn, stdin=lines)
    assert done.code == 2
    assert "the first 1000 were enqueued before this" in done.err
    assert "line 1002" in done.err
    with open_store(dsn) as store:
        assert store.stats()["emails"].ready == 1_000


def test_a_database_that_cannot_be_used_is_told_with_what_to_do(
    shell: Shell, tmp_path: Path, postgres_dsn: str
) -> None:
    (tmp_path / "text.db").write_text("not a database at all, but long enough to be looked at " * 10)
    nowhere = postgres_dsn.rsplit("/", 1)[0] + "/nowhere"
    wrong = postgres_dsn.replace("postgres:", "postgres:wrong", 1)
    refused = "postgresql://app:hunter2@127.0.0.1:1/shop"
    shell("migrate", CONQUIET_DSN=refused).refused(3, "Connection refused", "check", "CONQUIET_DSN")
    results = shell.refuses(
        {
            "jobs stats": (2, "DATABASE_URL", "sqlite:///"),
            "jobs stats --dsn memory://": (2, "memory://", "exists only inside its process"),
            f"jobs stats --dsn {refused}": (3, "Connection refused", "check", "--dsn"),
            f"jobs list --dsn {wrong}": (
                3,
                "password authentication failed",
                "user and the password in --dsn",
            ),
            f"migrate --dsn {nowhere}": (3, '"nowhere" does not exist', "create that database"),
            "jobs stats --dsn sqlite:///text.db": (3, "not a database"),
            "jobs list --dsn sqlite:///mistyped.db": (5, "there is no file mistyped.db", "--dsn"),
            "enqueue a {} --dsn sqlite:///mistyped.db": (5, "there is no file mistyped.db", "--dsn"),
            "migrate --dsn sqlite:///no/such/folder/jobs.db": (3, "the folder exists"),
        },
        DATABASE_URL="mysql://app:hunter2@host/shop",
    )
    said = "".join(done.err for done in results)
    assert "hunter2" not in said
    assert "wrong" not in said
    assert not (tmp_path / "mistyped.db").exists()


def test_a_schema_of_another_release_is_told(shell: Shell, tmp_path: Path) -> None:
    open_store(f"sqlite:///{tmp_path}/jobs.db").close()
    with sqlite3.connect(tmp_path / "jobs.db") as database:
        database.execute("UPDATE conquiet_schema SET version = 99, oldest = 99")
    database.close()
    told = (5, "version 99", "upgrade conquiet")
    shell.refuses({"jobs stats": told, "migrate": told}, CONQUIET_DSN="sqlite:///jobs.db")


def test_a_step_down_wants_a_yes(shell: Shell, tmp_path: Path) -> None:
    open_store(f"sqlite:///{tmp_path}/jobs.db").close()
    unsure, beyond, planned, still, done, gone = shell.each(
        "migrate --to 0",
        "migrate --to 99",
        "migrate --to 0 --dry-run --show-sql",
        "jobs stats",
        "migrate --to 0 --yes",
        "jobs stats",
        CONQUIET_DSN="sqlite:///jobs.db",
    )
    unsure.refused(2, "--yes")
    beyond.refused(2, "no schema version 99")
    assert "DROP TABLE" in planned.out
    assert still.code == 0
    assert done.out == "applied 0003_history (down)\napplied 0002_begun (down)\napplied 0001_jobs (down)\n"
    gone.refused(5, "no job tables", "conquiet migrate")


def test_settings_from_a_file(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "conquiet.toml").write_text('dsn = "sqlite:///jobs.db"\n')
    (tmp_path / "other.toml").write_text('dsn = "sqlite:///other.db"\n')
    migrated, other, absent = shell.each(
        "migrate", "jobs stats --config other.toml", "jobs stats --config absent.toml"
    )
    assert migrated.code == 0
    assert (tmp_path / "jobs.db").exists()
    other.refused(5, "other.db", "dsn in other.toml")
    absent.refused(2, "no file absent.toml", "--config")
    (tmp_path / "conquiet.toml").write_text('dns = "sqlite:///jobs.db"\n')
    shell("jobs", "stats").refused(2, "conquiet.toml", "'dns'", "dsn")


def test_what_is_in_a_job_does_not_reach_the_terminal(shell: Shell, tmp_path: Path) -> None:
    dsn = f"sqlite:///{tmp_path}/jobs.db"
    with open_store(dsn) as store:
        store.enqueue("emails\x1b[2J", {"to": "[bold]\x1b[31mann"}, id="mail\x07")
    listed, shown = shell.each("jobs list", "jobs show mail\x07", CONQUIET_DSN=dsn)
    assert listed.code == shown.code == 0
    assert not {"\x1b", "\x07"} & {*listed.out, *shown.out}
    assert "[bold]" in shown.out
