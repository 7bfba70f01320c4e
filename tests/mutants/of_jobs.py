"""Mutants of the job store's logic, of the worker, and of the engine over the jobs connector."""

from __future__ import annotations

from tests.mutants.mutation import Mutant, mutant

MEMORY = "conquiet.jobs.backends.memory:"
OPERATIONS = "conquiet.jobs.operations:"
WORKER_RUN = "conquiet.jobs.worker.run:WorkerRun."
CONNECTOR = "conquiet.connectors.jobs:_Jobs."

MUTANTS: list[Mutant] = [
    # -- the store's logic, in the memory store and in the code that all stores share
    mutant(
        "a lease is settled by the job's id alone",
        "jobs",
        ("stale-settle",),
        (f"{MEMORY}MemoryBackend._held", " or entry.row.lease_token != token", ""),
    ),
    mutant(
        "a settle after the expiry is accepted",
        "jobs",
        ("stale-settle",),
        (f"{MEMORY}MemoryBackend.settle", "settlement.token, now)", "settlement.token, 0.0)"),
    ),
    mutant(
        "a heartbeat after the expiry is accepted",
        "jobs",
        ("stale-settle",),
        (f"{MEMORY}MemoryBackend.heartbeat", "(job_id, token, now)", "(job_id, token, 0.0)"),
    ),
    mutant(
        "a heartbeat is answered but not stored",
        "jobs",
        ("two-holders",),
        (
            f"{MEMORY}MemoryBackend.heartbeat",
            "lease_expires_at=until",
            "lease_expires_at=row.lease_expires_at",
        ),
    ),
    mutant(
        "a lease is rescued by a stale note of its expiry",
        "jobs",
        ("two-holders",),
        (
            f"{MEMORY}MemoryBackend._next",
            "if _claimable(entry.row, now):",
            "if entry.row.state == IN_FLIGHT or _claimable(entry.row, now):",
        ),
        (
            f"{MEMORY}MemoryBackend._promote",
            "self._offer(heapq.heappop(self._later)[1], now)",
            "job_id = heapq.heappop(self._later)[1]\n"
            "        row, seq = self._jobs[job_id].row, self._jobs[job_id].seq\n"
            "        heapq.heappush(self._ready.setdefault(row.queue, []), (row.priority, seq, job_id))",
        ),
    ),
    mutant(
        "a claim reads first and leases later, without a lock",
        "jobs",
        ("two-holders",),
        (
            f"{MEMORY}MemoryBackend.claim",
            "    with self._lock:\n        now = self._now()\n        self._promote(now)",
            "    if True:\n        now = self._now()\n        self._promote(now)\n"
            "        snapshot = list(self._next(claim.queues, now))[:claim.limit]\n"
            "        for one in snapshot:\n            self._offer(one.row.id, now)\n"
            "        yield Sleep(0.001)",
        ),
        (
            f"{MEMORY}MemoryBackend.claim",
            "in islice(self._next(claim.queues, now), claim.limit):",
            "in snapshot:",
        ),
    ),
    mutant(
        "an expired lease is never rescued",
        "jobs",
        ("passed-over",),
        (f"{MEMORY}MemoryBackend._lease", "heapq.heappush(self._later, (until, row.id))", "pass"),
    ),
    mutant(
        "the version is not raised by a claim",
        "jobs",
        ("version",),
        (f"{MEMORY}MemoryBackend._lease", "entry.row.lease_version + 1", "max(entry.row.lease_version, 1)"),
    ),
    mutant(
        "a token is given out again",
        "jobs",
        ("token-reused",),
        (f"{MEMORY}MemoryBackend._lease", "str(uuid.uuid4())", "entry.row.id"),
    ),
    mutant(
        "a job that succeeded is claimed again",
        "jobs",
        ("delivered-after-ack",),
        (
            f"{MEMORY}MemoryBackend._end",
            "if end.state is JobState.READY:",
            "if end.state is JobState.SUCCEEDED:\n"
            "        entry.row = entry.row._replace(state=READY)\n"
            "    if end.state is not JobState.FAILED:",
        ),
    ),
    mutant(
        "a job that failed for good is claimed again",
        "jobs",
        ("delivered-after-ack",),
        (
            f"{MEMORY}MemoryBackend._end",
            "if end.state is JobState.READY:",
            "if end.state is JobState.FAILED:\n"
            "        entry.row = entry.row._replace(state=READY)\n"
            "    if end.state is not JobState.SUCCEEDED:",
        ),
    ),
    mutant(
        "a retry is not counted",
        "jobs",
        ("retries",),
        (f"{MEMORY}MemoryBackend._end", "row.retries + end.retry", "row.retries"),
    ),
    mutant(
        "one retry too many",
        "jobs",
        ("retries",),
        (
            "conquiet.jobs.retry:RetrySchedule.after_failure",
            "retries < max_retries",
            "retries <= max_retries",
        ),
    ),
    mutant(
        "giving back costs a retry",
        "jobs",
        ("retries",),
        (f"{OPERATIONS}_release", '"released")', '"released", retry=True)'),
    ),
    mutant(
        "losing a lease costs a retry",
        "jobs",
        ("retries",),
        (
            f"{MEMORY}MemoryBackend._expire",
            'Settlement(row.id, "", JobState.READY, "lease expired")',
            'Settlement(row.id, "", JobState.READY, "lease expired", retry=True)',
        ),
    ),
    mutant(
        "a job that kills its workers runs again for ever",
        "jobs",
        ("circles",),
        (
            f"{MEMORY}MemoryBackend._expire",
            "if row.lease_begun and times >= claim.max_lease_expiries:",
            "if False:",
        ),
    ),
    mutant(
        "a retry does not wait",
        "jobs",
        ("claimed-early",),
        (f"{MEMORY}MemoryBackend._end", "on_grid(now + end.delay)", "now"),
    ),
    mutant(
        "the jitter has no bound",
        "jobs",
        ("jitter",),
        ("conquiet.jobs.retry:RetrySchedule.delay", "return min(delay,", "return max(8.0 * delay,"),
    ),
    mutant(
        "priorities are ignored",
        "jobs",
        ("order", "passed-over"),
        (f"{MEMORY}MemoryBackend._offer", "(row.priority, entry.seq, job_id)", "(0, entry.seq, job_id)"),
    ),
    mutant(
        "an enqueue whose outcome is unknown counts as stored",
        "jobs",
        ("lost",),
        (
            f"{OPERATIONS}JobOperations._insert",
            "raise",
            "return Inserted(0.0, error.ids)",
        ),
    ),
    mutant(
        "a refused settle is reported as done",
        "jobs",
        ("settled-twice",),
        (
            f"{OPERATIONS}JobOperations._settle_one",
            "if settlement.token not in",
            "if False and settlement.token not in",
        ),
    ),
    mutant(
        "no waiting worker is notified of new work",
        "jobs",
        ("slept-through",),
        ("conquiet.jobs.backends.wakeups:Wakeups.wake_all", "signal.set()", "pass"),
    ),
    # -- the worker
    mutant(
        "the worker acknowledges before the handler has run",
        "jobs",
        ("unhandled-ack",),
        (
            f"{WORKER_RUN}_run_job",
            "held.started = True",
            "held.started = True\n        self._committer.add(held, Execution(held.context.job))",
        ),
    ),
    mutant(
        "a stopping worker acknowledges jobs that it has not begun",
        "jobs",
        ("unhandled-ack",),
        (
            f"{WORKER_RUN}_run_job",
            "if self.stopping.is_set():\n        ended = Execution(held.context.job, given_back=True)",
            "if self.stopping.is_set():\n        ended = Execution(held.context.job)",
        ),
        (
            f"{WORKER_RUN}_give_back",
            "Execution(held.context.job, given_back=True, unbegun=unbegun, delay=delay)",
            "Execution(held.context.job)",
        ),
    ),
    mutant(
        "jobs that wait for their turn get no heartbeats",
        "jobs",
        ("lapsed",),
        (f"{WORKER_RUN}_leased", "if not item.lost]", "if not item.lost and item.started]"),
    ),
    mutant(
        "a handler that fails is acknowledged",
        "jobs",
        ("unhandled-ack",),
        ("conquiet.jobs.worker.committer:Committer._settle", "elif ended.error is None:", "elif True:"),
    ),
    # -- the engine
    mutant(
        "the engine acknowledges a failed job",
        "jobs",
        ("unhandled-ack",),
        (f"{CONNECTOR}settled", "outcome.status is OutcomeStatus.SUCCEEDED", "outcome.status"),
    ),
    mutant(
        "the engine sends no heartbeats",
        "jobs",
        ("lapsed",),
        (f"{CONNECTOR}_hold", "self._start_keeper(self._keep())", "pass"),
    ),
    mutant(
        "the engine acknowledges a job that it has not begun",
        "jobs",
        ("unhandled-ack",),
        (
            "conquiet.task.loop:ConsumeLoop._process",
            "self._finished(following, following.left(), processed=False)",
            "self._finished(following, Outcome(name, type(following.left().status).SUCCEEDED, "
            "transaction=following.transaction), processed=True)",
        ),
    ),
]
