"""The PostgreSQL store: one statement per operation, the server's own clock."""

from __future__ import annotations

import math
import random
import secrets
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from psycopg import errors as pg

from conquiet.errors import JobConfigError, StoreUnavailableError
from conquiet.flow import Call, Flow, Signal, Sleep
from conquiet.jobs.backends import schema
from conquiet.jobs.backends.caller_connection import after_commit, is_session
from conquiet.jobs.backends.postgres.connections import ENQUEUE
from conquiet.jobs.backends.postgres.cursors import ClaimCursors
from conquiet.jobs.backends.postgres.listener import WAITED, channel_of, waiting_place
from conquiet.jobs.backends.postgres.migration import migrated
from conquiet.jobs.backends.postgres.notifier import Notifier
from conquiet.jobs.backends.postgres.pages import page_statement
from conquiet.jobs.backends.postgres.statements import Statements
from conquiet.jobs.backends.postgres.values import (
    COLUMNS,
    LEASED,
    begin_values,
    end_values,
    in_ascii,
    lease_values,
    number_array,
    text_array,
)
from conquiet.jobs.backends.protocol import PRUNE_STEP, Claim, Inserted, JobRow, Listing, NewRow, Settlement
from conquiet.jobs.backends.rows import (
    EXPIRED_ERROR,
    RANKED,
    duplicate_error,
    duplicates,
    leased_row,
)
from conquiet.jobs.backends.sql_files import load, migrations
from conquiet.jobs.model import JobState, QueueStats, StoreCapabilities
from conquiet.jobs.turns import by_turns
from conquiet.observe import SafeLogger

__all__ = ["PostgresBackend"]

_SQL = load("postgres", columns=COLUMNS, leased=LEASED, waited=WAITED)
_MIGRATIONS = migrations("postgres")
_LOCKED_SECONDS = 0.05
_POLL_SECONDS = 0.5  # the longest pause of a worker that cannot listen
_COMPACT_SHARE = 1 / 256  # of the settles add up the counts
_log = SafeLogger("conquiet.jobs")


class PostgresBackend(Statements):
    """Uses a few autocommit connections, each taken for one statement, and others that listen while a worker waits."""

    capabilities = StoreCapabilities("postgresql", durable=True, own_clock=True, joins_transactions=True)
    _late = False  # the last claim found delayed jobs that are due, and probably more of them are
    _goes_on = False  # claims may go on from cursors: a worker finds what is behind them a little later

    def __init__(self, dsn: str, *, awaits: bool, max_connections: int) -> None:
        super().__init__(dsn, awaits=awaits, max_connections=max_connections)
        self._notifier = Notifier(partial(PostgresBackend, dsn, awaits=False, max_connections=1))
        self._cursors = ClaimCursors()
        self.notified = 0  # notifications that have reached those who wait for work here

    def open(self, migrate: str) -> Flow[None]:
        try:
            found = yield from self._version()
            if schema.check_version(found, _MIGRATIONS, self._where, migrate):
                yield from self.migrate(None)
        except BaseException:  # cancellation included: nothing else would close the connections
            yield from self._drop_connections()
            raise

    def _version(self) -> Flow[schema.Stored | None]:
        rows = yield from self._rows("SELECT to_regclass('conquiet_schema') IS NOT NULL", {})
        if not rows[0][0]:
            return None
        rows = yield from self._rows("SELECT * FROM conquiet_schema LIMIT 2", {})
        return schema.stored_version(rows, self._where)

    def migrate(self, target: int | None) -> Flow[list[str]]:
        return self._placed(self._migrate(target))

    def _migrate(self, target: int | None) -> Flow[list[str]]:
        connection = yield from self._take()
        try:
            with self._translated("migrate", connection):
                done = yield from migrated(connection, _MIGRATIONS, self._where, target)
        except BaseException:  # cancellation included: closing the connection rolls back
            yield Call(connection.close, shield=True)
            raise
        yield from self._give_back(connection)
        return done

    def plan(self, target: int | None) -> Flow[list[tuple[str, str]]]:
        found = yield from self._version()
        return [(step.name, step.sql) for step in schema.steps(_MIGRATIONS, found, target)]

    def insert(
        self, queue: str, rows: Sequence[NewRow], skip: bool, connection: Any, notify: bool = True
    ) -> Flow[Inserted]:
        if connection is None or is_session(connection):
            place = waiting_place(channel_of(queue)) if notify and connection is None else None
            begun = self._notifier.mark()
            inserted, waited = yield from self._insert(queue, rows, skip, connection, place=place)
            if not notify:
                pass
            elif connection is None:
                self._notifier.notify(queue, begun, waited)
            else:
                after_commit(connection, partial(self._notifier.notify, queue))
            return inserted
        # Nobody says when this transaction commits: PostgreSQL itself notifies then.
        channel = channel_of(queue) if notify else None
        return (yield from self._insert(queue, rows, skip, connection, channel=channel))[0]

    def _insert(
        self, queue: str, rows: Sequence[NewRow], skip: bool, connection: Any, **told: Any
    ) -> Flow[tuple[Inserted, bool]]:
        ids, payloads, priorities, delays, max_retries, correlation_ids, ats = zip(*rows, strict=True)
        values = {
            "queue": queue,
            "channel": None,
            "place": None,
            **told,
            "ids": text_array(ids),
            "payloads": text_array(payloads),
            "priorities": number_array(priorities),
            "delays": number_array(delays) if any(delays) else None,
            "max_retries": number_array(max_retries),
            "correlation_ids": list(correlation_ids) if any(correlation_ids) else None,
            "ats": list(ats) if any(ats) else None,
        }
        try:
            found = yield from self._rows(
                _SQL["insert_new" if skip else "insert"],
                values,
                ENQUEUE,
                theirs=connection,
                savepoint=not skip,
            )
        except pg.UniqueViolation as error:
            taken = yield from self._rows(_SQL["existing"], {"ids": text_array(ids)}, theirs=connection)
            # All ids, if the conflicting rows have been removed meanwhile.
            raise duplicate_error(duplicates(ids, {row[0] for row in taken}) or ids) from error
        return Inserted(found[0][0], {row[1] for row in found} if skip else ids), found[0][-1]

    def claim(self, claim: Claim) -> Flow[tuple[list[JobRow], bool]]:
        # A token is a random prefix, drawn once per claim, and the job's number.
        token = f"{secrets.token_hex(16)}-"
        values = {**claim._asdict(), "queues": list(claim.queues), "token": token}
        if self._goes_on and self._cursors.go_on():
            ready = yield from self._claim_onward(claim, values)
            if ready:
                return [leased_row(row, claim, token) for row in ready], False
        begun = self._cursors.now()
        if not self._late:
            ready = yield from self._rows(_SQL["claim_ready"], values, "claim")
            if ready:
                if self._cursors.began_again(begun):
                    self._cursors.move((row[2], row[4], row[0]) for row in ready)
                return [leased_row(row, claim, token) for row in by_turns(ready, claim.queues, 2, 4)], False
        values |= {"expired_error": EXPIRED_ERROR, "ranked": RANKED}
        claimed = yield from self._rows(_SQL["claim"], values, "claim")
        if self._cursors.began_again(begun):
            self._cursors.move((row[3], row[5], row[0]) for row in claimed if not row[1])
        # Delayed jobs that are due come in crowds: where this claim found one, the next one probably finds more.
        self._late = len(claimed) == claim.limit and any(row[1] for row in claimed)
        rows = [JobRow(*row[2:]) for row in by_turns(claimed, claim.queues, 3, 5)]
        leased = [row for row in rows if row.state == JobState.IN_FLIGHT]
        return leased, len(leased) < len(rows)

    def _claim_onward(self, claim: Claim, values: dict[str, Any]) -> Flow[list[Any]]:
        begun = self._cursors.now()
        ready = yield from self._rows(
            _SQL["claim_onward"], values | self._cursors.ranges(claim.queues), "claim"
        )
        self._cursors.went_on(begun)
        self._cursors.move((row[2], row[4], row[0]) for row in ready)
        return by_turns(ready, claim.queues, 2, 4)

    def set_aside(self, job_id: Any, token: str, reason: str) -> Flow[None]:
        values = {"id": job_id, "token": token, "reason": reason}
        yield from self._count(_SQL["set_aside"], values, "set aside")

    def set_aside_next(self, queues: Sequence[str], reason: str) -> Flow[bool]:
        values = {"queues": list(queues), "reason": reason}
        return bool((yield from self._count(_SQL["set_aside_next"], values, "set aside")))

    def settle(
        self, settlements: Sequence[Settlement], connection: Any, begins: Sequence[tuple[str, str]] = ()
    ) -> Flow[set[str]]:
        acks = [end for end in settlements if end.state is JobState.SUCCEEDED]
        others = [end for end in settlements if end.state is not JobState.SUCCEEDED]
        current: set[str] = set()
        if begins:
            values = begin_values(begins)
            if acks:
                values |= lease_values([(end.job_id, end.token) for end in acks])
                rows = yield from self._rows(_SQL["ack_and_begin"], values, "ack")
                current.update(token or acks[place - 1].token for place, token in rows)
                acks = []
            else:
                current.update(token for (token,) in (yield from self._rows(_SQL["begin"], values, "begin")))
        for name, ends in (("ack", acks), ("settle", others)):
            if ends:
                rows = yield from self._settle(name, ends, connection)
                current.update(ends[row[0] - 1].token for row in rows)
        if random.random() < _COMPACT_SHARE and connection is None:
            yield from self._compact()
        return current

    def _compact(self) -> Flow[None]:
        """Add up the counts of finished jobs, of which each settle writes one. It does not matter when, or who."""
        try:
            yield from self._count(_SQL["compact"], {}, "count")
        except StoreUnavailableError as error:
            _log.debug("counts were not added up, a later settle will do it: %s", error)

    def _settle(self, name: str, ends: Sequence[Settlement], connection: Any) -> Flow[list[Any]]:
        values = lease_values([(end.job_id, end.token) for end in ends])
        if name == "ack":
            return (yield from self._rows(_SQL[name], values, name, theirs=connection))
        values |= end_values(ends)
        try:
            rows = yield from self._rows(_SQL[name], values, name, theirs=connection)
        except JobConfigError as error:
            # The encoding of the database lacks a character of the error text: that must not keep the job from failing.
            if not isinstance(error.__cause__, pg.UntranslatableCharacter) or connection is not None:
                raise
            rows = yield from self._rows(_SQL[name], values | end_values(map(in_ascii, ends)), name)
        for queue in {queue for _, queue in rows if queue is not None}:
            self._notifier.notify(queue)
        return rows

    def heartbeat(self, leases: Sequence[tuple[str, str]]) -> Flow[dict[str, float]]:
        rows = yield from self._rows(_SQL["heartbeat"], lease_values(leases), "heartbeat")
        extended: dict[str, float] = {}
        for token, until in rows:
            extended[token] = max(until, extended.get(token, 0.0))
        return extended

    def get(self, job_id: str) -> Flow[JobRow | None]:
        rows = yield from self._rows(_SQL["get"], {"id": job_id})
        return JobRow(*rows[0]) if rows else None

    def select(self, listing: Listing) -> Flow[list[tuple[int, JobRow]]]:
        rows = yield from self._rows(*page_statement(_SQL, listing))
        return [(row[0], JobRow(*row[1:])) for row in rows]

    def stats(self, queue: str | None) -> Flow[list[QueueStats]]:
        rows = yield from self._rows(_SQL["stats"], {"queue": queue})
        return [QueueStats(*row) for row in rows]

    def backlog(self, queue: str, limit: int) -> Flow[int]:
        [(count,)] = yield from self._rows(_SQL["backlog"], {"queue": queue, "limit": limit})
        return int(count)

    def retry(self, job_id: str) -> Flow[bool]:
        rows = yield from self._rows(_SQL["retry"], {"id": job_id}, "retry")
        for (queue,) in rows:
            self._notifier.notify(queue)
        return bool(rows)

    def discard(self, job_id: str) -> Flow[bool]:
        return (yield from self._count(_SQL["discard"], {"id": job_id}, "discard")) == 1

    def prune(self, older_than: float) -> Flow[int]:
        values = {"older_than": older_than, "limit": PRUNE_STEP}
        removed = yield from self._count(_SQL["prune"], values, "prune")
        yield from self._compact()
        return removed

    def next_due(self, queues: Sequence[str]) -> Flow[float | None]:
        ((due,),) = yield from self._rows(_SQL["next_due"], {"queues": list(queues)})
        # An infinite time, written by someone else, is never due.
        return None if due is None or due == math.inf else float(max(due, 0.0))

    def wait_for_work(self, queues: Sequence[str], seconds: float, stop: Signal) -> Flow[None]:
        self._forget_parents_connections()
        if self._pooled:
            return (yield from self._poll(queues, seconds, stop))
        listener = yield from self._listener(queues)
        notified = listener.notified
        try:
            # It is listening, so no later job is missed; next_due finds the earlier ones.
            due = yield from self.next_due(queues)
            if due is not None:
                # A job that is due and was not claimed is locked: look again soon, but not immediately.
                seconds = min(seconds, max(due, _LOCKED_SECONDS))
            with self._translated("listen", listener.connection):
                yield listener.wait(seconds, stop)
        except BaseException:  # cancellation included: a half-read answer must not reach the next caller
            yield Call(listener.close, shield=True)
            raise
        self.notified += listener.notified - notified
        if self._closed:
            yield Call(listener.close, shield=True)
        else:
            listener.since = time.monotonic()
            self._listeners.append(listener)

    def _poll(self, queues: Sequence[str], seconds: float, stop: Signal) -> Flow[None]:
        """Wait where nobody can listen: look often at first, then less often."""
        if not self._polls:
            self._polls = True
            _log.warning(
                "%s is behind a pooler: workers find new jobs by polling, not by LISTEN", self._where
            )
        pause = _LOCKED_SECONDS
        while seconds > 0 and not stop.is_set():
            yield Sleep(min(pause, seconds), stop)
            seconds -= pause
            if (yield from self.next_due(queues)) == 0.0:
                return
            pause = min(pause * 2, _POLL_SECONDS)

    def tell(self, channels: Sequence[str]) -> Flow[set[str]]:
        """Notify those who wait on these channels. Return the channels on which somebody does."""
        values = {"channels": list(channels), "places": [waiting_place(channel) for channel in channels]}
        return {row[0] for row in (yield from self._rows(_SQL["notify"], values, "notify"))}

    def close(self) -> Flow[None]:
        yield from self._notifier.flush()
        yield from super().close()

    def awaiting(self) -> PostgresBackend:
        return type(self)(self.dsn, awaits=True, max_connections=self._max_connections)

    def for_worker(self) -> PostgresBackend:
        twin = object.__new__(_WorkerBackend)
        twin.__dict__ = self.__dict__  # the same connections; what one of them changes, the other sees
        return twin


class _WorkerBackend(PostgresBackend):
    """The store as its workers use it: they do not wait for a place, because they make only a few calls at a time."""

    _waits = False
    _goes_on = True
