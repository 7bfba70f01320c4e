"""Mutants of SQL: the SQLite store's in the simulation, the PostgreSQL store's on a real server."""

from __future__ import annotations

from tests.mutants.mutation import Mutant, mutant

SQLITE = "conquiet.jobs.backends.sqlite.steps:_SQL"
POSTGRES = "conquiet.jobs.backends.postgres.backend:_SQL"
EXECUTION = "conquiet.jobs.worker.execution:Executor."

MUTANTS: list[Mutant] = [
    # -- SQLite
    mutant(
        "SQLite: settled by id only",
        "sqlite",
        ("stale-settle",),
        (f"{SQLITE}[settle]", " AND lease_token = :token", ""),
        (f"{SQLITE}[ack]", "AND lease_token = ? ", "AND ? <> '' "),
    ),
    mutant(
        "SQLite: settled after the expiry",
        "sqlite",
        ("stale-settle",),
        (f"{SQLITE}[settle]", "AND (:token_only OR lease_expires_at > :now)", ""),
        (f"{SQLITE}[ack]", "AND lease_expires_at > ?", "AND ? > 0"),
    ),
    mutant(
        "SQLite: a heartbeat after the expiry",
        "sqlite",
        ("stale-settle",),
        (f"{SQLITE}[heartbeat]", " AND lease_expires_at > :now", ""),
    ),
    mutant(
        "SQLite: valid leases are rescued",
        "sqlite",
        ("two-holders",),
        (f"{SQLITE}[claim]", "state = 'InFlight' AND lease_expires_at <= :now\n", "state = 'InFlight'\n"),
    ),
    mutant(
        "SQLite: the version is not raised",
        "sqlite",
        ("version",),
        (
            f"{SQLITE}[claim_ready]",
            "lease_version = lease_version + 1",
            "lease_version = max(lease_version, 1)",
        ),
    ),
    mutant(
        "SQLite: a retry is not counted",
        "sqlite",
        ("retries",),
        (f"{SQLITE}[settle]", "retries = retries + :retry", "retries = retries"),
    ),
    mutant(
        "SQLite: delayed jobs do not wait",
        "sqlite",
        ("claimed-early",),
        ("conquiet.jobs.backends.sqlite.steps:_values", "0 if retry_at is None else 1", "0"),
    ),
    mutant(
        "SQLite: a succeeded job is claimed again",
        "sqlite",
        ("delivered-after-ack",),
        (f"{SQLITE}[ack]", "state = 'Succeeded'", "state = 'Ready'"),
    ),
    mutant(
        "SQLite: expired leases are never rescued",
        "sqlite",
        ("passed-over",),
        (f"{SQLITE}[late]", "lease_expires_at <= :now", "lease_expires_at <= 0"),
    ),
    mutant(
        "SQLite: a driver error is raised unchanged",
        "sqlite",
        ("foreign-error",),
        (
            "conquiet.jobs.backends.sqlite.connection:SqliteConnection._translated",
            "kind = DamagedRowError if _is_about_values(error) else StoreUnavailableError",
            "raise",
        ),
    ),
    mutant(
        "SQLite: a step that fails is committed in part",
        "sqlite",
        ("passed-over",),  # a claim that "changed nothing" has leased a job
        (
            "conquiet.jobs.backends.sqlite.connection:SqliteConnection._roll_back",
            "if connection is not None and not rolled_back(connection):",
            'if connection is not None and connection.in_transaction and not connection.execute("COMMIT"):',
        ),
    ),
    # -- PostgreSQL, where the logic is SQL and the fault needs a real server
    mutant(
        "PostgreSQL: acknowledged by id only",
        "postgres",
        ("stale-settle",),
        (f"{POSTGRES}[ack]", " AND job.lease_token = done.token", ""),
    ),
    mutant(
        "PostgreSQL: given back by id only",
        "postgres",
        ("stale-settle",),
        (f"{POSTGRES}[settle]", " AND job.lease_token = done.token", ""),
    ),
    mutant(
        "PostgreSQL: acknowledged after the expiry",
        "postgres",
        ("stale-settle",),
        (f"{POSTGRES}[ack]", "AND job.lease_expires_at > clock_timestamp()", ""),
    ),
    mutant(
        "PostgreSQL: a heartbeat after the expiry",
        "postgres",
        ("stale-settle",),
        (
            f"{POSTGRES}[heartbeat]",
            "AND job.lease_expires_at > clock_timestamp() FOR NO KEY UPDATE OF job SKIP LOCKED",
            "FOR NO KEY UPDATE OF job SKIP LOCKED",
        ),
    ),
    mutant(
        "PostgreSQL: a claim without lock",
        "postgres",
        ("waited",),
        (f"{POSTGRES}[claim_ready]", " FOR NO KEY UPDATE SKIP LOCKED", ""),
    ),
    mutant(
        "PostgreSQL: a claim that waits for the locks of others",
        "postgres",
        ("waited",),
        (f"{POSTGRES}[claim_ready]", " FOR NO KEY UPDATE SKIP LOCKED", " FOR NO KEY UPDATE"),
    ),
    mutant(
        "PostgreSQL: the version is not raised",
        "postgres",
        ("version",),
        (
            f"{POSTGRES}[claim_ready]",
            "lease_version = lease_version + 1",
            "lease_version = greatest(lease_version, 1)",
        ),
    ),
    mutant(
        "PostgreSQL: the NOTIFY of an enqueue is lost",
        "postgres",
        ("slept-through",),
        (
            "conquiet.jobs.backends.postgres.backend:PostgresBackend.insert",
            "self._notifier.notify(queue, begun, waited)\n",
            "pass\n",
        ),
    ),
    mutant(
        "PostgreSQL: whoever waits is overlooked",
        "postgres",
        ("slept-through",),
        (f"{POSTGRES}[notify]", "ELSE true END", "ELSE false END"),
    ),
    mutant(
        "PostgreSQL: the NOTIFY of a job given back is lost",
        "postgres",
        ("slept-through",),
        (f"{POSTGRES}[settle]", "THEN queue END", "THEN NULL::text END"),
    ),
    mutant(
        "PostgreSQL: the NOTIFY of a caller's transaction is lost",
        "postgres",
        ("slept-through",),
        (f"{POSTGRES}[insert]", "THEN pg_notify(%(channel)s, '')", "THEN NULL::text"),
    ),
    mutant(
        "PostgreSQL: a retry is not counted",
        "postgres",
        ("retries",),
        (f"{POSTGRES}[settle]", "retries = job.retries + done.retry", "retries = job.retries"),
    ),
    mutant(
        "PostgreSQL: the ack is committed before the handler's effect",
        "postgres",
        ("unhandled-ack",),
        (f"{EXECUTION}_commit", "self._operations.ack(job, transaction)", "self._operations.ack(job, None)"),
    ),
    # -- a handler's own transaction ----------------------------------------------------------------------------------
    mutant(
        "the effect is committed without the ack",
        "transactions",
        ("effect",),
        (
            f"{EXECUTION}_commit",
            "yield from self._operations.ack(job, transaction)",
            "yield from self._operations.backend.commit(transaction)\n"
            "        yield from self._operations.ack(job, None)\n"
            "        return Execution(job, settled=True)",
        ),
    ),
    mutant(
        "the effect is committed after the lease was lost",
        "transactions",
        ("effect",),
        (
            f"{EXECUTION}_commit",
            "yield from self._undo(context, abandoned=False)",
            "yield from self._operations.backend.commit(transaction)",
        ),
    ),
    mutant(
        "a handler that fails keeps its effect",
        "transactions",
        ("effect",),
        (
            f"{EXECUTION}_undo",
            "yield from self._operations.backend.roll_back(context.transaction)",
            "yield from self._operations.backend.commit(context.transaction)",
        ),
    ),
    mutant(
        "a commit without an answer counts as done",
        "transactions",
        ("unhandled-ack",),
        (
            "conquiet.jobs.worker.committer:Committer._settle",
            "yield from self._settle_unknown(held)",
            "acks.append(held)",
        ),
    ),
    mutant(
        "PostgreSQL: delayed jobs of the second priority are passed over",
        "postgres",
        ("passed-over",),
        (f"{POSTGRES}[claim]", "AND priority > level", "AND priority < level"),
    ),
    mutant(
        "PostgreSQL: delayed jobs are claimed early, when others are due",
        "postgres",
        ("claimed-early",),
        (
            f"{POSTGRES}[claim]",
            "AND priority = level\n                AND retry_at <= (SELECT clock_timestamp())",
            "AND priority = level",
        ),
    ),
    mutant(
        "SQLite: delayed jobs that are due are passed over",
        "sqlite",
        ("lost",),
        (f"{SQLITE}[claim]", "AND priority = level AND retry_at <= :now", "AND false"),
    ),
]
