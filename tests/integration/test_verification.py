"""`conquiet.testing.verification`: a good server passes and is left as it was; every check can fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from redis import Redis

from conquiet.errors import JobConfigError, QueueConnectionError, StaleLeaseError, StoreUnavailableError
from conquiet.jobs import JobStore, open_store
from conquiet.queue import QueueMessage, RedisStreamsQueue
from conquiet.testing.verification import Finding, verify
from conquiet.testing.verification import jobs as job_checks
from conquiet.testing.verification.findings import examined


def kinds(findings: tuple[Finding, ...]) -> list[str]:
    return [finding.kind for finding in findings]


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_good_store_keeps_every_promise_and_is_left_as_it_was(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    dsn = f"sqlite:///{tmp_path}/jobs.db" if kind == "sqlite" else request.getfixturevalue("postgres_dsn")
    with open_store(dsn) as store:
        store.enqueue("mine", {"n": 1}, id="mine")
    told: list[Finding] = []
    verdict = verify(dsn, work=60, kills=2, tell=told.append)
    assert verdict.ok, verdict.findings
    assert tuple(told) == verdict.findings
    assert kinds(verdict.findings) == ["kept"] * 8
    assert "60 jobs, 2 kills, 0 lost, 0 twice" in verdict.findings[-1].detail
    with open_store(dsn) as store:
        assert [job.id for job in store.list()] == ["mine"]
    if kind == "sqlite":
        assert {path.name for path in tmp_path.iterdir()} <= {"jobs.db", "jobs.db-wal", "jobs.db-shm"}
    else:
        with psycopg.connect(dsn) as connection:
            left = "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'conquiet_verify%'"
            assert connection.execute(left).fetchone() == (0,)


def test_a_good_redis_keeps_every_promise_and_says_what_its_settings_can_lose(redis_url: str) -> None:
    verdict = verify(redis_url, work=60, kills=2)
    assert verdict.ok, verdict.findings
    assert kinds(verdict.findings) == ["kept"] * 5 + ["note"] * 2
    assert "60 messages, 2 kills, 0 lost" in verdict.findings[4].detail
    with Redis.from_url(redis_url) as redis:
        assert redis.dbsize() == 0
        before = redis.config_get("appendonly", "appendfsync")
        try:
            redis.config_set("appendonly", "yes", "appendfsync", "always")
            assert "survives a power cut" in verify(redis_url, work=4, kills=0).findings[-2].detail
        finally:
            redis.config_set("appendonly", before["appendonly"], "appendfsync", before["appendfsync"])


def test_memory_has_no_processes_to_kill() -> None:
    assert kinds(verify("memory://", work=40).findings) == ["kept"] * 6


def test_a_server_that_is_away_is_an_error_in_one_line_without_its_password() -> None:
    with pytest.raises(StoreUnavailableError, match="cannot be reached") as caught:
        verify("postgresql://me:hunter2@127.0.0.1:1/none")
    assert "hunter2" not in str(caught.value)
    with pytest.raises(QueueConnectionError, match="cannot be reached"):
        verify("redis://:hunter2@127.0.0.1:1/0")
    with pytest.raises(JobConfigError, match="cannot be verified"):
        verify("mysql://here")


def quiet(method: Callable[..., Any]) -> Callable[..., Any]:
    """Accepts what is stale."""

    def settle(*args: Any, **named: Any) -> Any:
        try:
            return method(*args, **named)
        except StaleLeaseError:
            return None

    return settle


def without_last(jobs: list[Any]) -> list[Any]:
    return jobs[:-1]


BROKEN: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "what is enqueued comes back as it was": (
        "enqueue_many",
        lambda enqueue: lambda self, queue, items: enqueue(self, queue, without_last(items)),
    ),
    "one valid lease per job, however many claim at once": (
        "claim",
        lambda claim: lambda self, queues, **options: 2 * claim(self, queues, **options),
    ),
    "a stale worker cannot finish a job": ("ack", quiet),
    "a heartbeat keeps a lease alive": ("heartbeat", lambda heartbeat: lambda self, job: job),
    "the job of a dead worker runs again": (
        "claim",
        lambda claim: (
            lambda self, queues, **options: (
                claim(self, queues, **options) if options.get("worker") != "second" else []
            )
        ),
    ),
}


@pytest.mark.parametrize("name", list(BROKEN))
def test_a_store_that_breaks_a_promise_is_found_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method, broken = BROKEN[name]
    monkeypatch.setattr(JobStore, method, broken(getattr(JobStore, method)))
    monkeypatch.setattr(job_checks, "_SHORT", 0.02)
    with job_checks.open_for_checks("memory://") as store:
        (check,) = [check for check in job_checks.job_checks(store, 40, 0) if check.name == name]
        (finding,) = examined([check])
    assert finding.kind == "broken", finding


def test_a_job_that_is_retried_too_often_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    enqueue = JobStore.enqueue
    monkeypatch.setattr(
        JobStore,
        "enqueue",
        lambda self, queue, payload, **options: enqueue(self, queue, payload, max_retries=3),
    )
    with job_checks.open_for_checks("memory://") as store:
        findings = list(examined(job_checks.job_checks(store, 10, 0)))
    assert "ran 4 times, not 1 + 2" in findings[-1].detail


def test_effects_that_are_lost_or_doubled_are_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    effects = job_checks._Checks._effects
    for change, text in (
        (lambda found: found[:-1], "1 of 20 jobs have no effect"),
        (lambda f: [*f, f[-1]], "twice"),
    ):
        with job_checks.open_for_checks(f"sqlite:///{tmp_path}/{text[:2]}.db") as store:
            together, kills = job_checks.job_checks(store, 20, 0)[-2:]
            assert next(examined([together])).kind == "kept"
            monkeypatch.setattr(
                job_checks._Checks,
                "_effects",
                lambda self, store, change=change: (
                    change(found) if len(found := effects(self, store)) > 1 else found
                ),
            )
            (finding,) = examined([kills])
            monkeypatch.setattr(job_checks._Checks, "_effects", effects)
        assert finding.kind == "broken"
        assert text in finding.detail


def test_a_stream_that_delivers_twice_or_lets_anybody_acknowledge_is_found_out(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = RedisStreamsQueue.read

    def doubled(self: RedisStreamsQueue, block_ms: int, count: int = 1) -> list[QueueMessage]:
        return 2 * read(self, block_ms, count)

    with monkeypatch.context() as patch:
        patch.setattr(RedisStreamsQueue, "read", doubled)
        assert kinds(verify(redis_url, work=20, kills=0).findings)[:2] == ["broken"] * 2
    monkeypatch.setattr(RedisStreamsQueue, "ack_if_owner", RedisStreamsQueue.ack)
    monkeypatch.setattr(RedisStreamsQueue, "claim_stale", lambda self, *_: [])
    assert kinds(verify(redis_url, work=0, kills=0).findings)[2:4] == ["broken"] * 2
