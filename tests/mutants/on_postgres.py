"""A quick run of the PostgreSQL store on a real server: fencing, retries, locks, notifications, transactions.

Nothing here depends on how fast the machine is: leases are made to expire by SQL, a claim that waits for a lock runs
into `lock_timeout`, and a notification is lost if one that was sent after it arrives alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg

from conquiet.errors import ConquietError, StaleLeaseError
from conquiet.flow import Flow
from conquiet.jobs import Job, JobContext, JobState, JobStore, JobWorker, RetrySchedule, open_store
from conquiet.testing.history import Violation


def play_postgres(dsn: str) -> list[Violation]:
    """What is wrong with the store; nothing, if it is the real one."""
    with psycopg.connect(dsn, autocommit=True) as server:
        server.execute("DROP TABLE IF EXISTS conquiet_jobs, conquiet_schema CASCADE")
        name = server.execute("SELECT quote_ident(current_database())").fetchone()
        assert name is not None
        server.execute(f"ALTER DATABASE {name[0]} SET lock_timeout = '500ms'")
        with open_store(dsn, retry=RetrySchedule(1, 0.001, 0.001)) as store:
            run = _Run(store, server, dsn)
            for scenario in (run.fencing, run.retries, run.locks, run.notifications, run.effects):
                scenario()
            return run.found


class _Run:
    def __init__(self, store: JobStore, server: psycopg.Connection[Any], dsn: str) -> None:
        self.store = store
        self.server = server
        self.dsn = dsn
        self.found: list[Violation] = []

    def broken(self, kind: str, message: str) -> None:
        self.found.append(Violation(kind, None, message))

    def claim(self) -> Job | None:
        try:
            jobs = self.store.claim("q", lease_ttl=60.0)
        except ConquietError as error:
            self.broken("foreign-error", f"claim: {error}")
            return None
        return jobs[0] if jobs else None

    def fencing(self) -> None:
        """Two leases of one job, one after the other: the first may do nothing any more."""
        for settle in (self.store.ack, self.store.release, self.store.nack, self.store.heartbeat):
            self.store.enqueue("q", {})
            first = self.claim()
            self._expire()
            if first is None or self._refused(settle, first, "its lease had expired"):
                continue
            second = self.claim()
            if second is None:
                self.broken("passed-over", "an expired lease was not rescued")
                continue
            if self._refused(settle, first, "another had the job by then"):
                continue
            assert first.lease is not None
            assert second.lease is not None
            if second.lease.version <= first.lease.version:
                self.broken("version", f"{first.lease.version}, and then {second.lease.version}")
            self.store.ack(second)

    def _refused(self, settle: Callable[[Job], object], job: Job, why: str) -> bool:
        """Whether `settle` was, wrongly, accepted."""
        try:
            settle(job)
        except StaleLeaseError:
            return False
        self.broken("stale-settle", f"{settle.__name__} was accepted, though {why}")
        self._clear()
        return True

    def retries(self) -> None:
        self._clear()
        job = self.store.enqueue("q", {}, max_retries=1)
        versions = []
        for number in range(4):
            self.server.execute("UPDATE conquiet_jobs SET retry_at = clock_timestamp() WHERE waiting")
            claimed = self.claim()
            if claimed is None:
                break
            assert claimed.lease is not None
            versions.append(claimed.lease.version)
            if number == 0:
                self.store.release(claimed)  # which costs nothing
            else:
                self.store.nack(claimed)
        last = self.store.get(job.id)
        if len(versions) != 3 or last is None or last.state is not JobState.FAILED:
            self.broken("retries", f"max_retries 1, given back once, and it was run {len(versions)} times")
        if versions != sorted(set(versions)):
            self.broken("version", f"leases of versions {versions}")

    def locks(self) -> None:
        """One job is locked by somebody's claim in progress: the next claim takes the other, and waits for nobody."""
        self._clear()
        self.store.enqueue_many("q", [{"n": 0}, {"n": 1}])
        with psycopg.connect(self.dsn) as other:
            other.execute("SELECT 1 FROM conquiet_jobs ORDER BY seq LIMIT 1 FOR NO KEY UPDATE")
            job = self.claim()
            if job is not None and job.payload != {"n": 1}:
                self.broken("two-holders", "a job was claimed that somebody else has locked")
            other.rollback()

    def notifications(self) -> None:
        self._clear()
        with psycopg.connect(self.dsn, autocommit=True) as listener:
            listener.execute("LISTEN conquiet_jobs")
            self.store.enqueue("q", {})
            self._told(listener, "an enqueue")
            job = self.claim()
            if job is not None:
                self.store.release(job)
                self._told(listener, "a release")

    def _told(self, listener: psycopg.Connection[Any], of: str) -> None:
        self.server.execute("NOTIFY conquiet_jobs, 'the end'")
        payloads = []
        for notify in listener.notifies():
            payloads.append(notify.payload)
            if notify.payload == "the end":
                break
        if "q" not in payloads:
            self.broken("slept-through", f"nobody was told of {of}")

    def effects(self) -> None:
        """What a handler writes in the worker's transaction is there once, whatever happens around the commit."""
        self._clear()
        self.server.execute("DROP TABLE IF EXISTS effects; CREATE TABLE effects (job text)")
        for trouble in ("", "cut before the commit", "lease lost"):
            job = self.store.enqueue("q", {})
            self._work(trouble)
            self._expire()
            self._work("")
            rows = self.server.execute("SELECT 1 FROM effects WHERE job = %s", (job.id,)).fetchall()
            last = self.store.get(job.id)
            if len(rows) != 1 or last is None or last.state is not JobState.SUCCEEDED:
                state = None if last is None else last.state
                self.broken(
                    "effect", f"{trouble or 'no trouble'}: {len(rows)} effects, and the job is {state}"
                )

    def _work(self, trouble: str) -> None:
        def handle(job: Job, context: JobContext) -> None:
            context.connection.execute("INSERT INTO effects VALUES (%s)", (job.id,))
            if trouble == "lease lost" and context.version == 1:
                self._expire()

        backend: Any = self.store.operations.backend
        commit = backend.commit

        def cut(connection: Any) -> Flow[None]:
            connection.close()
            yield from commit(connection)

        if trouble.startswith("cut"):
            backend.commit = cut
        try:
            JobWorker(self.store, handle, queues="q", concurrency=1, lease_ttl=60.0).run_until_idle()
        finally:
            backend.commit = commit

    def _expire(self) -> None:
        self.server.execute(
            "UPDATE conquiet_jobs SET lease_expires_at = clock_timestamp() - interval '1 second' "
            "WHERE state = 'InFlight'"
        )

    def _clear(self) -> None:
        self.server.execute("DELETE FROM conquiet_jobs")
