"""Job workers' connections cut in COMMIT, ack, claim, heartbeat and enqueue, at every byte: nothing lost or doubled."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from conquiet.errors import StoreOutcomeUnknownError, StoreUnavailableError
from conquiet.jobs import JobState, JobStore, JobWorker, NewJob, RetrySchedule, open_store
from conquiet.verify.history import History, check, read_events
from conquiet.verify.proxy import Cutting, PostgresFraming, Proxy
from conquiet.verify.recording.jobs import RecordedBackend, add_unwritten, record
from tests.campaign import campaign_size
from tests.chance import new_chance
from tests.faults.figures import Record
from tests.faults.recovery import double_valid_leases
from tests.integration.jobs.background import Running, until
from tests.integration.jobs.effects import Effects

# A cut before the COMMIT fails the attempt. The producer sets how often a job may fail.
RETRY = RetrySchedule(max_retries=1_000, base_seconds=0.0)
COMMIT, ACK, CLAIM, HEARTBEAT, INSERT = (
    "COMMIT",
    "SET state = 'Succeeded'",
    "SKIP LOCKED",
    "held (id, token",
    "INSERT INTO conquiet_jobs",
)
BACKLOG = 60
TTL = 1.0


def through(proxy: Proxy, dsn: str) -> str:
    """The DSN of the same database through the proxy."""
    where = conninfo_to_dict(dsn)
    return (
        f"postgresql://{where['user']}:{where['password']}@127.0.0.1:{proxy.port}/{where['dbname']}"
        "?sslmode=disable&gssencmode=disable"
    )


@pytest.fixture
def proxy(postgres_dsn: str) -> Iterator[Proxy]:
    with Proxy(int(conninfo_to_dict(postgres_dsn)["port"] or 0), PostgresFraming) as running:
        yield running


class Handlers:
    """Effects in the store's database, committed with the ack; and plain work, acknowledged in batches."""

    def __init__(self, backend: RecordedBackend) -> None:
        self._backend = backend

    def effect(self, job: Any, context: Any) -> None:
        self._backend.begin_handling(job)
        context.connection.execute(f"INSERT INTO effects VALUES ({job.payload['n']})")

    async def effect_async(self, job: Any, context: Any) -> None:
        self._backend.begin_handling(job)
        connection = await context.get_connection()
        await connection.execute(f"INSERT INTO effects VALUES ({job.payload['n']})")

    def plain(self, job: Any) -> None:
        self._backend.begin_handling(job)
        time.sleep(0.4 if job.payload["n"] % 40 == 1 else 0.0)  # some jobs need a heartbeat
        self._backend.end_handling(job)


class Enqueuing:
    """A producer behind the proxy. If the outcome is unknown, the error names the ids, and it retries with them."""

    def __init__(self, store: JobStore, history: History) -> None:
        self._store = store
        self._history = history
        self.ids: list[str] = []
        self.unknown = 0
        self.named = 0  # of these: the error named the ids

    def some(self) -> None:
        first = len(self.ids)
        new = {
            "effect": [NewJob({"n": n}, id=f"job-{n}") for n in range(first, first + 20) if n % 2 == 0],
            "plain": [NewJob({"n": n}, id=f"job-{n}") for n in range(first, first + 20) if n % 2 == 1],
        }
        for queue, jobs in new.items():
            ids = [job.id or "" for job in jobs]
            with self._history.operation("enqueue", *ids):
                self._enqueue(queue, jobs)
            self.ids += ids

    def _enqueue(self, queue: str, jobs: list[NewJob]) -> None:
        while True:
            try:
                self._store.enqueue_many(queue, jobs, on_duplicate="skip")
                return
            except StoreOutcomeUnknownError as error:
                self.unknown += 1
                self.named += error.ids == tuple(job.id for job in jobs)
            except StoreUnavailableError:
                pass  # the error says that nothing was changed


@pytest.mark.campaign
@pytest.mark.timeout(180)
@pytest.mark.clause("J-12", "J-13", "J-22")
def test_connections_cut_in_commit_ack_claim_heartbeat_and_enqueue(
    postgres_dsn: str, proxy: Proxy, tmp_path: Path, record_figure: Record
) -> None:
    cuts, seed = campaign_size(1_400), new_chance().seed_used
    behind = through(proxy, postgres_dsn)
    words = [(proxy, word) for word in (COMMIT, ACK, COMMIT, CLAIM, ACK, INSERT, COMMIT, HEARTBEAT)]
    with open_store(postgres_dsn) as direct, History(tmp_path / "history") as history, ExitStack() as stack:
        effects = Effects(direct)
        for isolation in ("thread", "async"):
            store = stack.enter_context(open_store(behind, retry=RETRY, max_lease_expiries=10_000))
            handlers = Handlers(record(store, history))
            by_isolation: dict[str, dict[str, Callable[..., Any]]] = {
                "thread": {"effect": handlers.effect, "plain": handlers.plain},
                "async": {"effect": handlers.effect_async},
            }
            worker = JobWorker(
                store, by_isolation[isolation], isolation=isolation, lease_ttl=TTL, concurrency=4
            )
            stack.enter_context(Running(worker))
        producer = Enqueuing(stack.enter_context(open_store(behind, retry=RETRY)), history)

        def open_jobs() -> int:
            return sum(
                queue.ready + queue.delayed + queue.in_flight + queue.expired
                for queue in direct.stats().values()
            )

        with Cutting(words, cuts, seed) as cutting:
            while not cutting.is_over:
                if open_jobs() < BACKLOG:
                    producer.some()
                time.sleep(0.01)
        until(lambda: open_jobs() == 0, 60)
        stack.close()
        unwritten = add_unwritten(direct, history, producer.ids)
        jobs = [direct.get(job_id) for job_id in producer.ids]
        numbers = effects.numbers()
    wanted = list(range(0, len(jobs), 2))
    unknown = [event for _, event in read_events(tmp_path / "history") if event and event.phase == "unknown"]
    doubled_acks = sum(
        max(0, [a.outcome for a in job.attempts].count("succeeded") - 1) for job in jobs if job is not None
    )
    verdict = check(tmp_path / "history", fenced=True)
    record_figure(
        "connections cut in COMMIT, ack, claim, heartbeat, enqueue of jobs (PostgreSQL)",
        n=cutting.count,
        lost=len(set(wanted) - set(numbers)) + sum(job is None for job in jobs),
        doubled=len(numbers) - len(set(numbers)) + doubled_acks,
        cut_points=cutting.points,
        cut_in=cutting.by_word,
        cut_in_commit_or_ack=cutting.within(COMMIT, ACK),
        unknown_outcomes_resolved=len(unknown) + producer.unknown + unwritten,
        double_valid_leases=double_valid_leases(verdict),
        jobs=len(jobs),
        seed=seed,
    )
    verdict.raise_if_broken()
    assert cutting.count == cuts
    assert cutting.within(COMMIT, ACK) >= cuts * 6 // 10
    assert producer.named == producer.unknown
    assert [job for job in jobs if job is None or job.state is not JobState.SUCCEEDED] == []
    assert numbers == wanted  # every effect, each exactly once
    assert doubled_acks == 0
    assert len(unknown) + producer.unknown + unwritten > 0


@pytest.mark.campaign
def test_a_commit_at_one_byte_a_second_is_waited_for(
    postgres_dsn: str, proxy: Proxy, record_figure: Record
) -> None:
    """It takes ten times the lease: heartbeats on another connection keep the lease."""
    with open_store(postgres_dsn) as direct, open_store(through(proxy, postgres_dsn)) as store:
        effects = Effects(direct)
        job = direct.enqueue("effect", {"n": 1})

        def effect(job: Any, context: Any) -> None:
            context.connection.execute("INSERT INTO effects VALUES (1)")

        strike = proxy.strike(COMMIT, "command", 0.75, fate="slow", rate=1.0)  # its last 3 bytes
        with Running(JobWorker(store, effect, queues="effect", lease_ttl=0.3)) as running:
            assert strike.done.wait(30)
            assert effects.numbers() == []
            until(lambda: effects.numbers() == [1])
            counts = running.stop()
        record_figure(
            "COMMIT of a job at 1 B/s, longer than its lease", n=1, lost=1 - counts.succeeded, whole=True
        )
        assert (counts.succeeded, counts.lost, counts.claimed) == (1, 0, 1)
        assert [a.outcome for a in direct.get(job.id).attempts] == ["succeeded"]


@pytest.mark.campaign
@pytest.mark.parametrize("side", ["command", "reply"])
def test_a_commit_that_is_swallowed_keeps_its_job_until_the_connection_ends(
    postgres_dsn: str, proxy: Proxy, side: Any, record_figure: Record
) -> None:
    """A black hole, no answers. The open transaction locks the job's row, or the job is done."""
    with open_store(postgres_dsn) as direct, open_store(through(proxy, postgres_dsn)) as store:
        effects = Effects(direct)
        job = direct.enqueue("effect", {"n": 1})

        def effect(job: Any, context: Any) -> None:
            context.connection.execute("INSERT INTO effects VALUES (1)")

        strike = proxy.strike(COMMIT, side, 0.0, fate="hole")
        swallowed = JobWorker(store, effect, queues="effect", lease_ttl=0.3, worker="swallowed")
        other = JobWorker(direct, effect, queues="effect", lease_ttl=0.3, worker="other")
        with (
            psycopg.connect(postgres_dsn, autocommit=True) as admin,
            Running(swallowed) as first,
            ExitStack() as stack,
        ):
            assert strike.done.wait(30)
            second = stack.enter_context(Running(other))
            for _ in range(10):  # one second: more than three leases
                assert len(effects.numbers()) == (side == "reply")
                admin.execute("SELECT pg_sleep(0.1)")
            assert direct.get(job.id).state is (JobState.SUCCEEDED if side == "reply" else JobState.IN_FLIGHT)
            proxy.heal()
            until(lambda: direct.get(job.id).state is JobState.SUCCEEDED)
            counts = first.stop(), second.stop()
        numbers = effects.numbers()
        record_figure(
            f"black hole: {'the answer to ' if side == 'reply' else ''}COMMIT of a job is swallowed",
            n=1,
            lost=1 - len(set(numbers)),
            doubled=len(numbers) - len(set(numbers)),
            whole=True,
        )
        assert numbers == [1]
        assert sum(count.succeeded for count in counts) == 1
        assert [a.outcome for a in direct.get(job.id).attempts].count("succeeded") == 1
