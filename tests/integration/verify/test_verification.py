"""`conquiet.verify`: a good server passes and is left as it was; every check can fail."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from redis import Redis

from conquiet.errors import JobConfigError, QueueConnectionError, StaleLeaseError, StoreUnavailableError
from conquiet.jobs import JobStore, open_store
from conquiet.queue import QueueMessage, RedisStreamsQueue
from conquiet.verify import Finding, verify
from conquiet.verify import job_faults as job_faults_module
from conquiet.verify import jobs as job_checks
from conquiet.verify.findings import Extent, examined
from conquiet.verify.job_faults import job_faults

NO_FAULTS: dict[str, Any] = {"kills": 0, "cuts": 0, "signals": 0, "cancels": 0}
REDIS_FIGURES = [
    r"\d+ messages, 1 kills, 0 lost, \d+ delivered again; 95 % bound 3/1",
    r"\d+ messages, 5 cuts at [45] kinds of place, 0 lost, \d+ handled again; 95 % bound 3/5 = 60.0%",
    r"1 pauses, 1 taken over, 1 late ack_if_owner refused",
    r"1 consumers, 1 messages finished, 0 pending, 0 lost",
    r"10 cancelled at \d+ awaits of 4 calls, 0 lost",
]


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
    verdict = verify(dsn, work=60, kills=1, cuts=5, signals=1, cancels=10, tell=told.append)
    assert verdict.ok, verdict.findings
    assert tuple(told) == verdict.findings
    assert kinds(verdict.findings) == ["kept"] * (11 if kind == "sqlite" else 12)
    figures = {finding.name.partition(":")[0]: finding.detail for finding in verdict.findings}
    assert re.search(r"\d+ jobs, 1 kills, 0 lost, 0 twice; 95 % bound 3/1", figures["workers killed -9"])
    if kind == "postgresql":
        cut = figures["connections cut in COMMIT and ack"]
        assert re.search(
            r"\d+ jobs, 5 cuts at [45] kinds of place, 0 lost, 0 twice; 95 % bound 3/5 = 60.0%", cut
        )
    assert re.search(
        r"1 taken over, [1-9] stale settles refused", figures["workers paused beyond their lease"]
    )
    assert "1 jobs finished, 3 released, 0 lost" in figures["workers stopped by SIGTERM"]
    assert "10 cancelled at" in figures["asyncio calls cancelled at every await"]
    with open_store(dsn) as store:
        assert [job.id for job in store.list()] == ["mine"]
    if kind == "sqlite":
        assert {path.name for path in tmp_path.iterdir()} <= {"jobs.db", "jobs.db-wal", "jobs.db-shm"}
    else:
        with psycopg.connect(dsn) as connection:
            left = "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'conquiet_verify%'"
            assert connection.execute(left).fetchone() == (0,)


def test_a_good_redis_keeps_every_promise_and_says_what_its_settings_can_lose(redis_url: str) -> None:
    verdict = verify(redis_url, work=60, kills=1, cuts=5, signals=1, cancels=10)
    assert verdict.ok, verdict.findings
    assert kinds(verdict.findings) == ["kept"] * 9 + ["note"] * 2
    for finding, figure in zip(verdict.findings[4:], REDIS_FIGURES, strict=False):
        assert re.search(figure, finding.detail), finding
    with Redis.from_url(redis_url) as redis:
        assert redis.dbsize() == 0
        before = redis.config_get("appendonly", "appendfsync")
        try:
            redis.config_set("appendonly", "yes", "appendfsync", "always")
            assert "survives a power cut" in verify(redis_url, work=4, **NO_FAULTS).findings[-2].detail
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
    """Accept a stale lease without an error."""

    def settle(*args: Any, **named: Any) -> Any:
        try:
            return method(*args, **named)
        except StaleLeaseError:
            return None

    return settle


def without_last(jobs: list[Any]) -> list[Any]:
    return jobs[:-1]


BROKEN: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "what is enqueued comes back unchanged": (
        "enqueue_many",
        lambda enqueue: lambda self, queue, items: enqueue(self, queue, without_last(items)),
    ),
    "one valid lease per job, however many claim it": (
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
        (check,) = [check for check in job_checks.job_checks(store, 40) if check.name == name]
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
        findings = list(examined(job_checks.job_checks(store, 10)))
    assert "ran 4 times, not 1 + 2" in findings[-1].detail


def test_effects_that_are_lost_or_doubled_are_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    effects = job_faults_module.effects_in
    changes: list[tuple[Callable[[list[str]], list[str]], str]] = [
        (without_last, "1 of 20 jobs have no effect"),
        (lambda found: [*found, found[-1]], "twice"),
    ]
    for number, (change, text) in enumerate(changes):
        folder = tmp_path / str(number)
        folder.mkdir()
        with job_checks.open_for_checks(f"sqlite:///{folder}/jobs.db") as store:
            together = job_checks.job_checks(store, 20)[-1]
            assert next(examined([together])).kind == "kept"
            kills = job_faults(store, Extent(work=20, kills=1), folder)[0]
            with monkeypatch.context() as patch:
                patch.setattr(job_faults_module, "effects_in", lambda store, c=change: c(effects(store)))
                (finding,) = examined([kills])
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
        assert kinds(verify(redis_url, work=20, **NO_FAULTS).findings)[:2] == ["broken"] * 2
    monkeypatch.setattr(RedisStreamsQueue, "ack_if_owner", RedisStreamsQueue.ack)
    monkeypatch.setattr(RedisStreamsQueue, "claim_stale", lambda self, *_: [])
    assert kinds(verify(redis_url, work=0, **NO_FAULTS).findings)[2:4] == ["broken"] * 2
