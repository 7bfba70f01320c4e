"""The disk is full: every caller gets an error, what was acknowledged is there, and with space again work goes on."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from conquiet.embedded import PostgresServer, RedisServer
from conquiet.jobs import JobState, JobStore, JobWorker, StoreUnavailableError, open_store
from conquiet.queue import QueueConfig, QueueError, RedisStreamsQueue, connect
from tests.faults.figures import Record
from tests.faults.small_disk import small_disk
from tests.integration.jobs.background import until

SETTINGS = QueueConfig("faults", "group", "alice")
pytestmark = pytest.mark.campaign  # always runs in full; part of the campaign's list


def text(kilobytes: int) -> str:
    return secrets.token_hex(kilobytes * 512)  # incompressible


def until_refused(add: Callable[[int], str], kilobytes: int, kind: type[Exception]) -> tuple[list[str], str]:
    """What was acknowledged before the first refusal, and the refusal."""
    added: list[str] = []
    while len(added) < 10_000:
        try:
            added.append(add(kilobytes))
        except kind as error:
            return added, str(error)
    raise AssertionError("the disk was never full")


def enqueue_to(store: JobStore) -> Callable[[int], str]:
    return lambda kilobytes: store.enqueue("q", {"text": text(kilobytes)}).id


def test_full_disk_under_sqlite(tmp_path: Path, record_figure: Record) -> None:
    with small_disk(tmp_path / "disk", megabytes=8) as disk:
        with open_store(f"sqlite:///{disk.folder}/jobs.db") as store:
            add = enqueue_to(store)
            added = [add(16) for _ in range(4)]
            with disk.full(lambda: [os.getpid()]):
                more, said = until_refused(add, 16, StoreUnavailableError)
                assert "full" in said or "I/O error" in said  # a file size limit is no full disk to SQLite
                found = {job.id for job in store.list(limit=100_000)}
            added += [*more, add(16)]
            lost = len(set(added) - found) - 1
            counts = JobWorker(store, lambda job: None, queues="q").run_until_idle()
            states = {store.get(job_id).state for job_id in added}
        record_figure("disk full under SQLite", n=1, lost=lost, whole=True)
        assert (lost, states, counts.succeeded) == (0, {JobState.SUCCEEDED}, len(added))


def test_full_disk_under_postgresql(tmp_path: Path, record_figure: Record) -> None:
    settings: dict[str, str | bool] = {
        "shared_buffers": "16MB",
        "max_wal_size": "48MB",
        "min_wal_size": "32MB",
        "autovacuum": False,
    }
    with small_disk(tmp_path / "disk", megabytes=160) as disk:
        with (
            PostgresServer(settings=settings, base_folder=disk.folder) as server,
            open_store(server.dsn) as store,
        ):
            add = enqueue_to(store)
            added = [add(16) for _ in range(4)]

            def processes() -> list[int]:
                children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
                return [server.pid, *map(int, children)]

            with disk.full(processes):
                more, said = until_refused(add, 512, StoreUnavailableError)
                assert "No space left" in said or "File too large" in said
                assert said.endswith("Nothing was changed")
                found = {job.id for job in store.list(limit=100_000)}
            added += [*more, add(16)]
            lost = len(set(added) - found) - 1
            counts = JobWorker(store, lambda job: None, queues="q").run_until_idle()
            states = {store.get(job_id).state for job_id in added}
        record_figure("disk full under PostgreSQL", n=1, lost=lost, whole=True)
        assert (lost, states, counts.succeeded) == (0, {JobState.SUCCEEDED}, len(added))


@pytest.mark.parametrize("fsync", ["everysec", "always"])
def test_full_disk_under_redis(
    tmp_path: Path, redis_server: RedisServer, record_figure: Record, fsync: str
) -> None:
    """Under everysec Redis refuses writes until there is space; under always it exits rather than answer."""
    with small_disk(tmp_path / "disk", megabytes=8) as disk:
        program = disk.program(redis_server.binary)
        with (
            RedisServer(
                appendonly=True,
                appendfsync=fsync,  # type: ignore[arg-type]
                config={"auto-aof-rewrite-percentage": 0},
                binary=program,
                base_folder=disk.folder,
            ) as server,
            connect(server.url) as client,
        ):
            queue = RedisStreamsQueue(client, SETTINGS)

            def add(kilobytes: int) -> str:
                return queue.enqueue({"text": text(kilobytes)})

            added = [add(4) for _ in range(4)]
            with disk.full(lambda: [server.pid]):
                more, said = until_refused(add, 4, QueueError)
                added += more
                if fsync == "everysec":
                    assert "MISCONF" in said or "Errors writing to the AOF" in said
                else:
                    until(lambda: not server.running)
            if fsync == "always":
                server.start()
            else:
                until(lambda: writes(client))  # Redis tries again every second
            found = {entry_id.decode() for entry_id, _ in client.xrange(SETTINGS.stream_key)}
            lost = len(set(added) - found)
            added.append(add(4))
            server.kill()
            server.start()
            found = {entry_id.decode() for entry_id, _ in client.xrange(SETTINGS.stream_key)}
        record_figure(
            f"disk full under {redis_server.flavour}, appendfsync {fsync}", n=1, lost=lost, whole=True
        )
        assert lost == 0
        assert set(added) <= found


def writes(client: redis.Redis) -> bool:
    try:
        return bool(client.set("probe", 1))
    except redis.ResponseError:
        return False
