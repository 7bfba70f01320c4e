"""A quick run of the PostgreSQL store on a real server: fencing, retries, locks, notifications, transactions.

The run is recorded in a history and judged by its checker. What a history does not show (how often a job may run,
which claim waits for which, who is notified, what is in the database) is judged here.

Nothing here depends on the machine's speed: a lease expires while the server sleeps for longer than that, a claim
that waits for a lock runs into `lock_timeout`, and a notification is lost if one that was sent after it arrives alone.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

from conquiet.errors import ConquietError, StaleLeaseError
from conquiet.flow import Flow, run
from conquiet.jobs import Job, JobContext, JobState, JobStore, JobWorker, RetrySchedule, open_store
from conquiet.jobs.backends.postgres.listener import channel_of, listen_statement
from conquiet.verify.history import History, Violation, check
from conquiet.verify.recording.jobs import RecordedBackend, record

_SHORT = 0.05  # seconds: a lease that shall expire
_LONG = 60.0


def play_postgres(dsn: str, folder: Path) -> list[Violation]:
    """The violations of the store; none for the real one."""
    path = folder / "history"
    path.unlink(missing_ok=True)
    with psycopg.connect(dsn, autocommit=True) as server:
        server.execute("DROP TABLE IF EXISTS conquiet_jobs, conquiet_schema CASCADE")
        name = server.execute("SELECT quote_ident(current_database())").fetchone()
        assert name is not None
        server.execute(f"ALTER DATABASE {name[0]} SET lock_timeout = '500ms'")
        with History(path) as history, open_store(dsn, retry=RetrySchedule(1, 0.001, 0.001)) as store:
            run = _Run(store, server, dsn, history)
            for scenario in (run.fencing, run.retries, run.locks, run.notifications, run.delays, run.effects):
                scenario()
    # `drained` is not checked: these scenarios leave jobs unfinished.
    return run.found + check(path, drained=False, fenced=True).violations


class _Run:
    def __init__(self, store: JobStore, server: psycopg.Connection[Any], dsn: str, history: History) -> None:
        self.store = store
        self.server = server
        self.dsn = dsn
        self.history = history
        self.found: list[Violation] = []

    def broken(self, kind: str, message: str) -> None:
        self.found.append(Violation(kind, None, message))

    def enqueue(self, **options: Any) -> Job:
        with self.history.operation("enqueue") as op:
            job = self.store.enqueue("q", {}, **options)
            op.ok(job.id)
        return job

    def claim(self, lease_ttl: float = _LONG) -> Job | None:
        with self.history.operation("claim") as op:
            try:
                jobs = self.store.claim("q", lease_ttl=lease_ttl)
            except ConquietError as error:
                self.broken("waited", f"a claim ended with {error}")
                return None
            for job in jobs:
                assert job.lease is not None
                until = job.lease.expires_at.timestamp()
                op.ok(
                    job.id,
                    holder=job.lease.token,
                    version=job.lease.version,
                    at=until - lease_ttl,
                    until=until,
                )
        return jobs[0] if jobs else None

    def settle(self, name: str, job: Job) -> bool:
        """Whether it was accepted; at the time of the server's clock before the call, or later."""
        assert job.lease is not None
        calls: dict[str, Callable[[Job], Any]] = {
            "ack": self.store.ack,
            "release": self.store.release,
            "nack": self.store.nack,
            "heartbeat": self.store.heartbeat,
        }
        now = self.server.execute("SELECT date_part('epoch', clock_timestamp())").fetchone()
        assert now is not None
        with self.history.operation(name, job.id, holder=job.lease.token) as op:
            try:
                kept = calls[name](job)
            except StaleLeaseError:
                op.fail()
                return False
            until = kept.lease.expires_at.timestamp() if name == "heartbeat" else None
            op.ok(at=now[0], until=until)
        return True

    def ack(self, job: Job) -> None:
        assert job.lease is not None
        with self.history.operation("handle", job.id, holder=job.lease.token):
            pass
        self.settle("ack", job)

    def fencing(self) -> None:
        """Two leases of one job, one after the other: the first may do nothing any more."""
        for name in ("ack", "release", "nack", "heartbeat"):
            self.enqueue()
            first = self.claim(_SHORT)
            self.server.execute("SELECT pg_sleep(%s)", (2 * _SHORT,))
            if first is None or self.settle(name, first):
                self._clear()
                continue
            second = self.claim()
            if second is None:
                self.broken("passed-over", "an expired lease was not rescued")
            elif not self.settle(name, first):
                self.ack(second)
            self._clear()

    def retries(self) -> None:
        self._clear()
        job = self.enqueue(max_retries=1)
        runs = 0
        for number in range(4):
            self.server.execute("UPDATE conquiet_jobs SET retry_at = clock_timestamp() WHERE waiting")
            claimed = self.claim()
            if claimed is None:
                break
            runs += 1
            self.settle("release" if number == 0 else "nack", claimed)  # the first costs no retry
        last = self.store.get(job.id)
        if runs != 3 or last is None or last.state is not JobState.FAILED:
            self.broken("retries", f"max_retries 1, given back once, and it was run {runs} times")

    def locks(self) -> None:
        """One job is locked by another claim in progress: the next claim takes the other job, and does not wait."""
        self._clear()
        locked, free = self.enqueue(), self.enqueue()
        with psycopg.connect(self.dsn) as other:
            other.execute("SELECT 1 FROM conquiet_jobs WHERE id = %s FOR NO KEY UPDATE", (locked.id,))
            job = self.claim()
            if job is not None and job.id != free.id:
                self.broken("two-holders", "a job was claimed that another claim has locked")
            other.rollback()

    def notifications(self) -> None:
        self._clear()
        self._flush()  # what was enqueued and given back before
        with psycopg.connect(self.dsn, autocommit=True) as listener:
            listener.execute(listen_statement(["q"]))
            self.enqueue()
            self._told(listener, "an enqueue")
            with self.server.transaction():
                self.store.enqueue("q", {}, connection=self.server)
            self._told(listener, "an enqueue in a transaction")
            job = self.claim()
            if job is not None:
                self.settle("release", job)
                self._told(listener, "a release")

    def delays(self) -> None:
        """Delayed jobs that are due are claimed, whatever their priority; no others are."""
        self._clear()
        for number in range(6):
            self.enqueue(delay=_LONG, priority=(number + 1) % 2)
        due = "WHERE seq < (SELECT max(seq) FROM conquiet_jobs)"
        self.server.execute(f"UPDATE conquiet_jobs SET retry_at = clock_timestamp() {due}")
        claimed = sum(self.claim() is not None for _ in range(6))
        if claimed < 5:
            self.broken("passed-over", f"{claimed} of 5 delayed jobs that are due were claimed")
        elif claimed > 5:
            self.broken("claimed-early", "a delayed job was claimed before it is due")

    def _told(self, listener: psycopg.Connection[Any], of: str) -> None:
        self._flush()
        self.server.execute(f"NOTIFY {channel_of('q')}, 'the end'")
        payloads = []
        for notify in listener.notifies():
            payloads.append(notify.payload)
            if notify.payload == "the end":
                break
        if payloads == ["the end"]:
            self.broken("slept-through", f"no notification of {of}")

    def _flush(self) -> None:
        run(self.store.operations.backend._notifier.flush())  # type: ignore[attr-defined]

    def effects(self) -> None:
        """What a handler writes in the worker's transaction is there once, whatever happens around the commit."""
        self._clear()
        self.server.execute("DROP TABLE IF EXISTS effects; CREATE TABLE effects (job text)")
        backend = record(self.store, self.history)
        for trouble in ("", "cut before the commit", "lease lost"):
            job = self.enqueue()
            self._work(trouble, backend)
            self._expire()
            self._work("", backend)
            rows = self.server.execute("SELECT 1 FROM effects WHERE job = %s", (job.id,)).fetchall()
            last = self.store.get(job.id)
            if len(rows) != 1 or last is None or last.state is not JobState.SUCCEEDED:
                state = None if last is None else last.state
                self.broken(
                    "effect", f"{trouble or 'no trouble'}: {len(rows)} effects, and the job is {state}"
                )

    def _work(self, trouble: str, recorded: RecordedBackend) -> None:
        def handle(job: Job, context: JobContext) -> None:
            recorded.begin_handling(job)
            context.connection.execute("INSERT INTO effects VALUES (%s)", (job.id,))
            if trouble == "lease lost" and context.version == 1:
                self._expire()

        inner = recorded._inner
        commit = inner.commit

        def cut(connection: Any) -> Flow[None]:
            connection.close()
            yield from commit(connection)

        if trouble.startswith("cut"):
            inner.commit = cut
        try:
            JobWorker(self.store, handle, queues="q", concurrency=1, lease_ttl=_LONG).run_until_idle()
        finally:
            inner.commit = commit

    def _expire(self) -> None:
        """Expire the leases immediately. The history records them as given back: they have no holder any more."""
        held = self.server.execute(
            "SELECT id, lease_token FROM conquiet_jobs WHERE state = 'InFlight'"
        ).fetchall()
        # Recorded first: a worker may claim them again as soon as they have expired.
        for job_id, token in held:
            with self.history.operation("release", job_id, holder=token):
                pass
        self.server.execute(
            "UPDATE conquiet_jobs SET lease_expires_at = clock_timestamp() - interval '1 second' "
            "WHERE state = 'InFlight'"
        )

    def _clear(self) -> None:
        self.server.execute("DELETE FROM conquiet_jobs")
