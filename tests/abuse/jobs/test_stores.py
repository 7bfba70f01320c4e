"""The corpus against every job store: as payload, key, name and error text; and rows damaged past the store."""

from __future__ import annotations

import asyncio
import datetime
import decimal
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conquiet import Conquiet
from conquiet.embedded import PostgresServer
from conquiet.errors import JobConfigError, PayloadError, redact
from conquiet.jobs import (
    Job,
    JobState,
    JobStore,
    JobWorker,
    NewJob,
    migrate,
    migration_plan,
    open_async_store,
    open_store,
)
from conquiet.payload import PayloadLimits
from tests.abuse.corpus import CANARY, corpus, deep, huge
from tests.abuse.database import execute, execute_many, tables

GOOD = {"good": True}
MAX_ERROR = 8_192


def served(store: JobStore, *queues: str, name: str = "worker") -> list[Job]:
    """Everything a worker gets, in any order, until the queue is empty; a payload with a text to raise is failed."""
    seen: list[Job] = []

    def handler(job: Job) -> None:
        seen.append(job)
        if "raise" in job.payload:
            raise RuntimeError(job.payload["raise"])

    JobWorker(store, handler, queues=list(queues), worker=name, concurrency=2).run_until_idle()
    return seen


def states(store: JobStore) -> dict[str, JobState]:
    return {job.id: job.state for job in store.list(limit=10_000)}


def test_every_input_is_a_payload_that_comes_back_equal_or_is_refused(job_dsn: str) -> None:
    with open_store(job_dsn) as store:
        before, sent = tables(job_dsn), {"first": GOOD}
        store.enqueue("q", GOOD, id="first")
        for one in corpus():
            shapes: list[dict[str, Any]] = [{"value": one.text}, {one.text: 1}, {"a": [0, {"b": one.text}]}]
            shapes += [one.payload] if one.payload is not None else []
            for number, shape in enumerate(shapes):
                if one.is_unicode:
                    sent[f"{one.name}/{number}"] = shape
                else:
                    with pytest.raises(PayloadError, match="surrogate"):
                        store.enqueue("q", shape)
        store.enqueue_many("q", [NewJob(payload, id) for id, payload in sent.items() if id != "first"])
        store.enqueue("q", GOOD, id="last")
        sent["last"] = GOOD
        assert {job.id: job.payload for job in served(store, "q")} == sent
        assert states(store) == dict.fromkeys(sent, JobState.SUCCEEDED)
        assert tables(job_dsn) == before


def test_every_input_is_the_text_of_an_error_and_the_job_is_failed_with_it(job_dsn: str) -> None:
    with open_store(job_dsn) as store:
        before = tables(job_dsn)
        texts = {one.name: one.text for one in corpus()}
        raised = iter(texts.items())

        def handler(job: Job) -> None:
            if job.payload != GOOD:
                raise RuntimeError(texts[job.id])

        store.enqueue("q", GOOD, id="first")
        store.enqueue_many("q", [NewJob({}, id, max_retries=0) for id, _ in raised])
        store.enqueue("q", GOOD, id="last")
        JobWorker(store, handler, queues="q", concurrency=2).run_until_idle()
        jobs = {job.id: job for job in store.list(limit=10_000)}
        assert [jobs.pop(id).state for id in ("first", "last")] == [JobState.SUCCEEDED] * 2
        assert {job.state for job in jobs.values()} == {JobState.FAILED}
        for id, text in texts.items():
            # As much of it as a database can hold.
            expected = redact(text)[:MAX_ERROR].replace("\0", "\u2400").encode("utf-8", "replace").decode()
            assert (jobs[id].error, jobs[id].attempts[0].error_message) == (expected, expected), id
        assert tables(job_dsn) == before


def test_every_input_names_a_queue_a_job_and_a_worker_or_is_refused(job_dsn: str) -> None:
    with open_store(job_dsn) as store:
        before, names = tables(job_dsn), [one.text for one in corpus() if one.is_name]
        for one in corpus():
            name = one.text
            if one.is_name:
                store.enqueue(name, {"name": name}, id=name, correlation_id=name)
                continue
            refused = pytest.raises(JobConfigError, match=r"must (be|not hold)")
            with refused:
                store.enqueue(name, GOOD)
            with refused:
                store.enqueue("q", GOOD, id=name)
            with refused:
                store.enqueue("q", GOOD, correlation_id=name)
            if name:  # "" means the default name
                with refused:
                    store.claim("q", worker=name)
            with refused:
                store.claim(["q", name])
            with refused:
                store.get(name)
        # One at a time, by workers of that name; the second half by one worker of all those queues.
        for name in names[::2]:
            (job,) = store.claim(name, worker=name)
            assert job.lease is not None
            assert (job.id, job.queue, job.correlation_id, job.lease.worker) == (name,) * 4
            assert job.payload == {"name": name}
            store.heartbeat(job)
            store.ack(job)
        others = names[1::2]
        assert sorted(job.id for job in served(store, *others, name=names[-1])) == sorted(others)
        assert states(store) == dict.fromkeys(names, JobState.SUCCEEDED)
        assert {queue: stats.succeeded for queue, stats in store.stats().items()} == dict.fromkeys(names, 1)
        assert [store.get(name).id for name in names] == names
        assert tables(job_dsn) == before


def test_what_is_too_large_or_too_deep_is_refused_and_its_neighbours_are_served(job_dsn: str) -> None:
    with open_store(job_dsn) as store:
        nested: dict[str, Any] = {}
        for _ in range(100_000):
            nested = {"value": nested}
        store.enqueue("q", GOOD, id="first")
        with pytest.raises(PayloadError, match="over the limit of 8388608"):
            store.enqueue("q", {"value": "x" * len(huge())})
        with pytest.raises(PayloadError, match="deeper than 100 levels"):
            store.enqueue("q", nested)
        store.enqueue("q", GOOD, id="last")
        assert sorted(job.id for job in served(store, "q")) == ["first", "last"]


def test_with_a_higher_limit_50_megabytes_go_through(job_dsn: str) -> None:
    with open_store(job_dsn, limits=PayloadLimits(max_bytes=64 * 1024 * 1024)) as store:
        payload = {"value": "x" * (50 * 1024 * 1024)}
        store.enqueue("q", GOOD, id="first")
        store.enqueue("q", payload, id="huge", max_retries=0)
        store.enqueue("q", GOOD, id="last")
        assert {job.id: job.payload for job in served(store, "q")} == {
            "first": GOOD,
            "huge": payload,
            "last": GOOD,
        }


def unfit() -> list[Any]:
    """Python objects that are not valid payloads."""
    circular: dict[str, Any] = {}
    circular["value"] = circular
    values = [
        float("nan"),
        float("inf"),
        -float("inf"),
        b"x",
        bytearray(b"x"),
        {1},
        object,
        object(),
        1j,
        ...,
    ]
    values += [decimal.Decimal(1), datetime.datetime.now(datetime.UTC), Path("x"), range(3), print, 10**5_000]
    keys = [1, None, b"x", ("a",), 1.5, True]
    return [
        *(None, [], "x", b"{}", 1, 1.5, True, {1, 2}, object(), ({},), circular),
        *({"value": value} for value in values),
        *({"a": [{"b": value}]} for value in values),
        *({key: 1} for key in keys),
        *({"a": {key: 1}} for key in keys),
    ]


def test_objects_that_are_no_json_are_refused(job_dsn: str) -> None:
    with open_store(job_dsn) as store:
        store.enqueue("q", GOOD)
        for payload in unfit():
            with pytest.raises(PayloadError):
                store.enqueue("q", payload)
            with pytest.raises(PayloadError):
                store.enqueue_many("q", [GOOD, payload])
        assert [job.payload for job in served(store, "q")] == [GOOD]
        assert len(store.list()) == 1


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def test_settings_that_make_no_sense_are_refused(job_dsn: str) -> None:
    with open_store(job_dsn) as store:
        refused = pytest.raises(JobConfigError, match="must be")
        wrong: list[Any] = [10**5_000, -(10**5_000), float("nan"), "1", b"1", None, {}, 1j, Unshowable()]
        for settings in wrong:
            for name in ("priority", "delay", "id", "correlation_id"):
                if name in ("priority", "delay") or not isinstance(settings, str | None):
                    with refused:
                        store.enqueue("q", GOOD, **{name: settings})
            if not isinstance(settings, str):
                with refused:
                    store.enqueue(settings, GOOD)
                with refused:
                    store.get(settings)
            with refused:
                store.claim("q", limit=settings)
            with refused:
                store.claim("q", lease_ttl=settings)
            with refused:
                store.prune(settings)
        assert store.list() == []


@pytest.mark.parametrize("job_dsn", ["sqlite", "postgresql"], indirect=True)
def test_a_damaged_row_is_failed_with_the_reason_and_its_neighbours_are_served(job_dsn: str) -> None:
    """A write past the store damaged the row. Such a row must not end a worker, nor hide the others."""
    is_sqlite = job_dsn.startswith("sqlite")  # SQLite accepts anything as text
    damaged = {one.name: one for one in corpus() if is_sqlite or (one.is_unicode and "\0" not in one.text)}
    with open_store(job_dsn) as store:
        store.enqueue("q", GOOD, id="first")
        store.enqueue_many("q", [NewJob({}, id) for id in [*damaged, "deep"]])
        store.enqueue("q", GOOD, id="last")
        rows = [*((one.raw, id) for id, one in damaged.items()), (deep(), "deep")]
        value = "CAST(? AS text)" if is_sqlite else "convert_from(?, 'UTF8')"
        execute_many(job_dsn, f"UPDATE conquiet_jobs SET payload = {value} WHERE id = ?", rows)
        assert len(store.list(limit=10_000)) == len(damaged) + 3
        unread = store.get("deep")
        assert unread is not None
        assert (unread.state, unread.payload) == (JobState.READY, {})
        assert "cannot be read" in (unread.error or "")

        payloads = {id: one.payload for id, one in damaged.items() if one.payload is not None}
        seen = {job.id: job.payload for job in served(store, "q")}
        assert seen == {"first": GOOD, "last": GOOD, **payloads}
        for job in store.list(limit=10_000):
            assert job.state is (JobState.SUCCEEDED if job.id in seen else JobState.FAILED)
            if job.id not in seen:
                assert (job.error or "").startswith("its payload cannot be read: ")
                assert job.lease is None


@pytest.mark.parametrize("open_it", [open_store, migrate, migration_plan])
def test_a_dsn_that_leads_nowhere_is_refused_before_anything_is_tried(
    folder: Path, open_it: Callable[[str], Any]
) -> None:
    hosts = ["a..b", ".x", "x" * 64, "x" * 300]
    impossible = [
        *(f"postgresql://user:s3cret@{host}:1/jobs" for host in hosts),
        *(f"postgresql://user:s3cret@/jobs?host={host}&port=1" for host in hosts),
        "postgresql://user:s3cret\ud800@127.0.0.1:1/jobs",
        f"sqlite:///{folder}/a%00b.db",
        f"sqlite:///{folder}/a\0b.db",
        f"sqlite:///{folder}/\ud800.db",
    ]
    for dsn in impossible:
        with pytest.raises(JobConfigError) as refused:
            open_it(dsn)
        with pytest.raises(JobConfigError):
            asyncio.run(open_async_store(dsn))
        assert "s3cret" not in str(refused.value)
    assert list(folder.iterdir()) == []


def test_a_relative_path_in_a_folder_that_is_gone_is_refused(folder: Path) -> None:
    gone = folder / "gone"
    gone.mkdir()
    os.chdir(gone)  # the fixture changes back
    gone.rmdir()
    with pytest.raises(JobConfigError, match="the current folder cannot be found .* use an absolute path"):
        open_store("sqlite:///jobs.db")


def test_a_job_can_name_only_a_task_that_the_app_has(job_dsn: str) -> None:
    app, called = Conquiet(job_dsn), list[Any]()

    @app.task
    def send(value: Any = None) -> None:
        called.append(value)

    hostile = [one.text for one in corpus() if one.is_unicode]
    payloads: list[dict[str, Any]] = [{"task": text, "arguments": {"value": 1}} for text in hostile]
    payloads += [{"task": "send", "arguments": {text: 1}} for text in hostile]
    payloads += [{"task": "send", "arguments": text} for text in hostile]
    payloads += [{text: "send"} for text in hostile]
    before = tables(job_dsn)
    try:
        send.enqueue("first")
        store = app.store
        store.enqueue_many("default", [NewJob(payload, max_retries=3) for payload in payloads])
        send.enqueue("last")
        app.worker(concurrency=2, unknown_after=0).run_until_idle()  # no newer version of the app knows them
        assert sorted(called) == ["first", "last"]
        failed = store.list(state=JobState.FAILED, limit=10_000)
        assert len(failed) == len(payloads)
        assert all(job.error and job.retries == 0 for job in failed)  # a retry cannot help
    finally:
        app.close()
    assert set(tables(job_dsn)) >= set(before)


def test_nothing_was_executed_on_the_database_server(
    postgres_server: PostgresServer, postgres_dsn: str
) -> None:
    """After all of the above, on the same server."""
    found = [path for path in postgres_server.folder.rglob("*") if CANARY in path.name]
    assert found == []
    names = execute(postgres_dsn, "SELECT datname FROM pg_database UNION SELECT rolname FROM pg_roles")
    assert [name for (name,) in names if CANARY in name] == []
