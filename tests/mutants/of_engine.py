"""Mutants of the Consumer Engine's loop and of its connectors, in virtual time."""

from __future__ import annotations

from tests.mutants.mutation import Mutant, mutant

ATTEMPT = "conquiet.task.attempts:Attempts.attempt"
RUN = "conquiet.task.transaction_run:TransactionRun."
LOOP = "conquiet.task.loop:ConsumeLoop."
SETTLEMENT = "conquiet.task.settlement:Settlement."
ITERABLE = "conquiet.connectors.iterable:_Iterables."

MUTANTS: list[Mutant] = [
    # -- the steps of a transaction
    mutant(
        "engine: BUSINESS is retried",
        "engine",
        ("lives",),
        (f"{RUN}_is_final", "failure.category is ExceptionCategory.BUSINESS", "False"),
    ),
    mutant(
        "engine: one attempt too many",
        "engine",
        ("lives",),
        (ATTEMPT, "if attempts >= retry.max_attempts", "if attempts > retry.max_attempts"),
    ),
    mutant(
        "engine: the first backoff is the second",
        "engine",
        ("lives",),
        (ATTEMPT, "retry.delay(attempts - 1)", "retry.delay(attempts)"),
    ),
    mutant(
        "engine: an exception handler that failed counts as completed",
        "engine",
        ("outcomes",),
        (
            f"{RUN}_handled",
            "failure, handled, besides = final, False,",
            "failure, handled, besides = final, True,",
        ),
    ),
    mutant(
        "engine: after its time a transaction has no time for its exception handler",
        "engine",
        ("lives",),
        (f"{RUN}_handled", "self._is_out_of_time, self.deadline = False, None", "pass"),
    ),
    mutant(
        "engine: an exception that is raised twice keeps the first id",
        "engine",
        ("wrong-id",),
        (
            "conquiet.task.transaction_run:told_to",
            "else copy_for(transaction_id, error)",
            "else (error.__dict__.update(transaction_id=transaction_id), error)[1]",
        ),
    ),
    # -- fetching
    mutant(
        "engine: the limit is not counted down",
        "engine",
        ("fetches",),
        (
            f"{LOOP}_consume",
            "size = min(size, policy.limit - report.fetched)",
            "size = min(size, policy.limit - report.fetched) and size",
        ),
    ),
    mutant(
        "engine: a full batch does not reset the pauses after empty ones",
        "engine",
        ("fetches",),
        (f"{LOOP}_consume", "if batch:\n                empties = 0", "if batch:\n                pass"),
    ),
    mutant(
        "engine: it fetches although nobody is free",
        "engine",
        ("fetches",),
        (
            f"{LOOP}_wait_for_room",
            "len(self._open) < self._policy.concurrency.value and",
            "len(self._open) <= self._policy.concurrency.value and",
        ),
    ),
    mutant(
        "engine: a batch may be larger than what was asked for",
        "engine",
        ("raised",),
        ("conquiet.task.fetch:Fetch._checked", "if len(value) > size:", "if False:"),
    ),
    mutant(
        "engine: a batch that breaks the contract is forgotten",
        "engine",
        ("ends",),
        (f"{LOOP}_consume", "self._leave(self._taken_in(fetch.unusable))", "pass"),
    ),
    mutant(
        "engine: a batch that comes late is dropped",
        "engine",
        ("lost-batch",),
        ("conquiet.task.late_batches:LateBatches.add", "self.waiting += batch", "pass"),
    ),
    # -- running and stopping
    mutant(
        "engine: one id runs twice at a time",
        "engine",
        ("doubled",),
        (f"{LOOP}_process", "if name in self._running:", "if False:"),
        (f"{LOOP}_process", "del self._running[name]", "self._running.pop(name, None)"),
        (
            f"{LOOP}_process",
            "following = waiting.popleft()",
            "following = self._running.get(name) and waiting.popleft()",
        ),
    ),
    mutant(
        "engine: after stop() it goes on with what it has fetched",
        "engine",
        ("ends",),
        (f"{LOOP}_process", "if self._ending.is_set():", "if False:"),
    ),
    mutant(
        "engine: a loop whose time is up says that it was drained",
        "engine",
        ("ends",),
        (f"{LOOP}_drain", "if not ended:", "if False:"),
    ),
    mutant(
        "engine: coroutines that compute hold the event loop",
        "engine",
        ("starved",),
        (
            "conquiet.flow.asyncio_driver:_TaskDriver._drive",
            "if turn_is_over and not effect.shield:",
            "if False:",
        ),
    ),
    # -- settling
    mutant(
        "engine: what was not begun is not released",
        "engine",
        ("released",),
        (f"{SETTLEMENT}leave", "self._left.append(outcome)", "pass"),
    ),
    mutant(
        "engine: what settle refuses counts as settled",
        "engine",
        ("ends",),
        (f"{SETTLEMENT}_account", "if id(outcome) in refused:", "if False:"),
    ),
    mutant(
        "engine: a settle that fails ends nothing",
        "engine",
        ("raised",),
        (f"{SETTLEMENT}_tell", "self._break_down(failure)", "pass"),
    ),
    mutant(
        "engine: a CancelledError of settle's own ends the settler without a word",
        "engine",
        ("silent-settler",),
        (
            f"{SETTLEMENT}_tell",
            "if call.interrupted and is_a(error, Cancelled):",
            "if is_a(error, Cancelled):",
        ),
        ("conquiet.flow.crew:Crew.part", "if not self._is_cut_off:", "if False:"),
    ),
    # -- connectors
    mutant(
        "engine: an iterable that broke is drained at the next attempt",
        "engine",
        ("falsely-drained",),
        (f"{ITERABLE}fetch", "if self._failure is not None and not batch:", "if False:"),
    ),
    mutant(
        "engine: an iterable takes back what was begun",
        "engine",
        ("run-again",),
        (f"{ITERABLE}_take_back", "if not outcome.attempts", ""),
    ),
]
