"""Mutants of the in-process queue, its workers, the breaker, and the retry scheduler."""

from __future__ import annotations

from tests.mutants.mutation import Mutant, mutant

LOCAL = "conquiet.local."
SCHEDULER = "conquiet.reconcile.scheduler:"

MUTANTS: list[Mutant] = [
    # -- the in-process queue, its workers and the breaker
    mutant(
        "delayed items are promoted by copying them",
        "local",
        ("delivered-after-ack", "two-holders"),
        (
            f"{LOCAL}schedule:Timeline.take_due",
            "del starts[:count], buckets[:count]",
            "taken = [Bucket(b.dues[:], b.items[:], b.end) for b in taken]",
        ),
    ),
    mutant(
        "a worker that ends passes no wake-up on",
        "local",
        ("slept-through",),
        (f"{LOCAL}waiters:Waiters.hand_on", "self.notify()", "pass"),
    ),
    mutant(
        "a new item wakes no worker",
        "local",
        ("slept-through",),
        (f"{LOCAL}queue:PriorityDelayQueue.enqueue", "self._waiters.notify()", "pass"),
    ),
    mutant(
        "an item that is due earlier wakes no worker",
        "local",
        ("slept-through",),
        (f"{LOCAL}queue:PriorityDelayQueue._schedule_item", "self._waiters.notify_earlier()", "pass"),
    ),
    mutant(
        "the in-process queue serves in order of arrival",
        "local",
        ("passed-over",),
        (
            f"{LOCAL}queue:PriorityDelayQueue.enqueue",
            "(rank, seq, due, item, None)",
            "(0, seq, due, item, None)",
        ),
    ),
    mutant(
        "a stopped worker leaves ready items",
        "local",
        ("lost",),
        (f"{LOCAL}worker:Worker._step", "if item is not None:", "if item is not None and not stopping:"),
    ),
    mutant(
        "a half-open breaker lets all calls through",
        "local",
        ("breaker",),
        (
            f"{LOCAL}breaker:CircuitBreaker.allow",
            "if len(self._probes) >= self.half_open_probe_count:",
            "if False:",
        ),
    ),
    mutant(
        "a breaker opens one failure too late",
        "local",
        ("breaker",),
        (
            f"{LOCAL}breaker:CircuitBreaker.record_failure",
            "self._failures >= self.failure_threshold",
            "self._failures > self.failure_threshold",
        ),
    ),
    # -- the retry scheduler
    mutant(
        "the scheduler does not record what it has handed over",
        "reconciling",
        ("handed-twice",),
        (f"{SCHEDULER}RetryScheduler._batch", "session.commit()", "session.rollback()"),
    ),
    mutant(
        "a start resumes nothing that was handed over before",
        "reconciling",
        ("undrained", "lost"),
        (
            f"{SCHEDULER}_forgotten",
            '.on_conflict_do_update(index_elements=["report_id", "attempt"], set_={"enqueued_at": null()})',
            ".on_conflict_do_nothing()",
        ),
    ),
    mutant(
        "a retry is handed over without its delay",
        "reconciling",
        ("claimed-early",),
        (f"{SCHEDULER}RetryScheduler._hand_over", "delay_seconds=remaining", "delay_seconds=0.0"),
    ),
]
