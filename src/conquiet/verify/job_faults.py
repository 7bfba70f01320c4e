"""Tests what a job store guarantees when workers die, pause or are stopped, and when their connections break."""

from __future__ import annotations

import random
import secrets
import signal
import sqlite3
from collections import Counter
from contextlib import ExitStack, closing
from pathlib import Path
from time import sleep
from typing import Any
from urllib.parse import unquote

from conquiet.jobs import Job, JobState, JobStore, JobWorker, NewJob, RetrySchedule, open_store
from conquiet.sqlite_files import connected
from conquiet.verify.background import hushed, until, working
from conquiet.verify.findings import Check, Extent, asked, bound, judge, require
from conquiet.verify.history import History
from conquiet.verify.job_worker import EFFECTS
from conquiet.verify.owner import PLACES
from conquiet.verify.processes import WorkerProcess, kill_until
from conquiet.verify.proxied_servers import through_postgres
from conquiet.verify.proxy import Cutting
from conquiet.verify.recording.jobs import RecordedBackend, add_unwritten, record

__all__ = ["effects_in", "job_faults"]

_LIVES = 0.4  # seconds of work for each process that is killed
_SHORT = 1.0  # a lease that should expire
_LONG = 60.0  # and one that should not
_COMMIT, _ACK = "COMMIT", "SET state = 'Succeeded'"
_BACKLOG = 20
_PATIENT = RetrySchedule(base_seconds=0.0)


def job_faults(store: JobStore, extent: Extent, folder: Path) -> list[Check]:
    """Checks of a store whose scratch space has the table of effects; histories are written to `folder`."""
    of = _Faults(store, extent, folder)
    checks = [Check("workers killed -9: nothing lost, no effect twice", of.kills)]
    if store.capabilities.name == "postgresql":
        checks += [Check("connections cut in COMMIT and ack: nothing lost, no effect twice", of.cuts)]
    return [
        *checks,
        Check("workers paused beyond their lease: their late calls are refused", of.pauses),
        Check("workers stopped by SIGTERM: jobs not begun are released", of.terms),
    ]


class _Faults:
    def __init__(self, store: JobStore, extent: Extent, folder: Path) -> None:
        self._store = store
        self._extent = extent
        self._folder = folder
        self._insert = "?" if store.capabilities.name == "sqlite" else "%s"

    def kills(self) -> str:
        store, count, kills = self._store, self._extent.work, asked(self._extent.kills, "kills")
        with History(self._folder / "kills") as history:
            ids = self._enqueued(history, "killed", count)

            def feed() -> None:
                ids.extend(self._enqueued(history, "killed", 2 * PLACES))

            def left() -> int:
                stats = store.stats("killed")["killed"]
                return len(ids) - stats.succeeded - stats.failed

            seconds = 2 * _LIVES * kills * 2 * PLACES / count
            order = self._order("killed", history, seconds=seconds, lease_ttl=1.0)
            kill_until(order, kills, left=left, feed=feed)
            self._judge(history, ids)
        return f"{len(ids)} jobs, {kills} kills, 0 lost, 0 twice; {bound(kills)}"

    def cuts(self) -> str:
        cuts = asked(self._extent.cuts, "cuts")
        queues = ("cut", "cut-plain")
        ids: list[str] = []
        with (
            hushed(),
            History(self._folder / "cuts") as history,
            through_postgres(self._store.dsn) as (proxy, behind),
            ExitStack() as stack,
        ):
            store = stack.enter_context(open_store(behind, retry=_PATIENT, max_lease_expiries=10_000))
            handlers = dict(zip(queues, self._handlers(record(store, history)), strict=True))
            stack.enter_context(working(JobWorker(store, handlers, lease_ttl=1.0, concurrency=4)))
            words = [(proxy, word) for word in (_COMMIT, _COMMIT, _ACK)]
            with Cutting(words, cuts, random.randrange(2**32)) as cutting:
                until(
                    lambda: cutting.is_over or self._fed(history, queues, ids), f"{cuts} cuts", patience=120
                )
            until(lambda: not self._left(queues), "after the cuts everything is done")
            stack.close()
            require(cutting.count == cuts, f"only {cutting.count} of {cuts} connections could be cut")
            self._judge(history, ids, queues[0])
        return (
            f"{len(ids)} jobs, {cuts} cuts at {cutting.points} kinds of place, 0 lost, 0 twice; {bound(cuts)}"
        )

    def pauses(self) -> str:
        store, pauses = self._store, asked(self._extent.signals, "signals")
        ids: list[str] = []
        with hushed(), History(self._folder / "pauses") as history:
            order = self._order("paused", history, held=True, lease_ttl=_SHORT)
            with WorkerProcess(order) as process, open_store(store.dsn, retry=_PATIENT) as rescuing:
                handle, _ = self._handlers(record(rescuing, history))
                for _ in range(pauses):
                    ids += self._enqueued(history, "paused", 1)
                    process.wait_for(f"at {ids[-1]}")
                    self._pause(process)
                    rescuer = JobWorker(rescuing, handle, queues="paused", lease_ttl=_LONG, concurrency=1)
                    with working(rescuer):
                        until(lambda: not self._left(["paused"]), "the job of a paused worker is taken over")
                    process.resume()
                    process.go_on(ids[-1])
                process.send(signal.SIGTERM)
                process.wait_for("stop")
                counts = process.end()
            self._judge(history, ids)
        require(
            counts["succeeded"] == 0 and counts["lost"] >= pauses,
            f"of {pauses} settles after the lease {counts['succeeded']} were accepted, {counts['lost']} refused",
        )
        return (
            f"{pauses} pauses, {pauses} taken over, {counts['lost']} stale settles refused; {bound(pauses)}"
        )

    def terms(self) -> str:
        """Stopped in the handler of one job, with others prefetched: that one is finished, the others are released."""
        store, terms = self._store, asked(self._extent.signals, "signals")
        jobs = 4
        with hushed(), History(self._folder / "terms") as history, ExitStack() as stack:
            begun = []
            for number in range(terms):
                queue = f"ended-{number}"
                ids = self._enqueued(history, queue, jobs)
                order = self._order(queue, history, held=True, prefetch=jobs - 1, lease_ttl=_LONG)
                begun.append((queue, ids, stack.enter_context(WorkerProcess(order))))
            for queue, ids, process in begun:
                process.wait_for(f"at {ids[0]}")
                process.send(signal.SIGTERM)
                process.wait_for("stop")
                process.go_on(ids[0])
                counts = process.end()
                stats = store.stats(queue)[queue]
                require(
                    counts["succeeded"] == 1, f"{counts['succeeded']} jobs were finished, not the one begun"
                )
                require(
                    (stats.succeeded, stats.ready) == (1, jobs - 1),
                    f"of {jobs - 1} jobs not begun {stats.ready} were released",
                )
                handle, _ = self._handlers(record(opened := open_store(store.dsn), history))
                with opened:
                    JobWorker(opened, handle, queues=queue, concurrency=1, lease_ttl=_LONG).run_until_idle()
            self._judge(history, [job for _, ids, _ in begun for job in ids])
        return (
            f"{terms} workers, {terms} jobs finished, {terms * (jobs - 1)} released, 0 lost; {bound(terms)}"
        )

    # -- shared by the checks ------------------------------------------------------------------------------------

    def _pause(self, process: WorkerProcess) -> None:
        """Pause, but not while the process holds SQLite's only write lock: all others would have to wait for it."""
        process.pause()
        while self._store.capabilities.name == "sqlite" and _is_locked(self._store.dsn):
            process.resume()
            sleep(0.02)
            process.pause()

    def _order(self, queue: str, history: History, **more: Any) -> dict[str, Any]:
        order = {"work": "jobs", "dsn": self._store.dsn, "queue": queue, "history": history.path}
        return order | {"held": False, "prefetch": None} | more

    def _enqueued(self, history: History, queue: str, count: int) -> list[str]:
        ids = [f"{queue}-{secrets.token_hex(8)}" for _ in range(count)]
        new = [NewJob({"n": n}, id=job_id, max_retries=1_000) for n, job_id in enumerate(ids)]
        with history.operation("enqueue", *ids):
            self._store.enqueue_many(queue, new)
        return ids

    def _handlers(self, backend: RecordedBackend) -> tuple[Any, Any]:
        """A handler whose effect is in the transaction of its ack, and one without a transaction."""
        insert = f"INSERT INTO {EFFECTS} (job) VALUES ({self._insert})"  # noqa: S608

        def effect(job: Job, context: Any) -> None:
            backend.begin_handling(job)
            context.connection.execute(insert, (job.id,))

        def plain(job: Job) -> None:
            backend.begin_handling(job)
            backend.end_handling(job)

        return effect, plain

    def _fed(self, history: History, queues: tuple[str, ...], ids: list[str]) -> bool:
        """Keep a backlog; always False."""
        if self._left(queues) < _BACKLOG:
            for queue in queues:
                ids += self._enqueued(history, queue, _BACKLOG)
        return False

    def _left(self, queues: Any) -> int:
        stats = self._store.stats()
        found = [stats[queue] for queue in queues if queue in stats]
        return sum(one.ready + one.delayed + one.in_flight + one.expired for one in found)

    def _judge(self, history: History, ids: list[str], with_effects: str = "") -> None:
        """Judge by the history and by the database; `with_effects` is the only queue with effects, if given."""
        found = [job for job in map(self._store.get, ids) if job is not None]
        require(len(found) == len(ids), f"{len(ids) - len(found)} of {len(ids)} jobs are gone")
        add_unwritten(self._store, history, ids)
        judge(history.path, fenced=True)
        undone = sum(job.state is not JobState.SUCCEEDED for job in found)
        require(not undone, f"{undone} of {len(ids)} jobs are not Succeeded")
        wanted = {job.id for job in found if with_effects in ("", job.queue)}
        effects = Counter(job for job in effects_in(self._store) if job in wanted)
        lost, twice = wanted - set(effects), [job for job, times in effects.items() if times > 1]
        require(not lost, f"{len(lost)} of {len(wanted)} jobs have no effect")
        require(not twice, f"{len(twice)} effects happened twice")


def effects_in(store: JobStore) -> list[str]:
    """The ids of jobs in the table of effects, read by another job."""
    found: list[str] = []

    def read(job: Job, context: Any) -> None:
        rows = context.connection.execute(f"SELECT job FROM {EFFECTS}")  # noqa: S608
        found.extend(row[0] for row in rows)

    store.enqueue("read", {})
    JobWorker(store, read, queues="read", concurrency=1).run_until_idle(wait_for_delayed=True)
    return found


def _is_locked(dsn: str) -> bool:
    path = unquote(dsn.partition("?")[0].removeprefix("sqlite:///"))
    with closing(connected(path, "FULL", "PRAGMA busy_timeout = 500")) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        connection.execute("ROLLBACK")
        return False
