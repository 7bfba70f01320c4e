"""Mutants of the queue and its consumer, on the stage of tests/acceptance with a real Redis."""

from __future__ import annotations

from tests.mutants.mutation import Mutant, mutant

CONSUMING = "conquiet.queue.flows.delivery:Delivery."
OPERATIONS = "conquiet.queue.flows.operations:StreamOperations."

MUTANTS: list[Mutant] = [
    mutant(
        "queue: acknowledged before the commit",
        "steady",
        ("unhandled-ack",),
        (
            f"{CONSUMING}_deliver",
            "if (returned := (yield Call(tx.commit, shield=True))) is not None:",
            "yield from self._operations.ack(message)\n        "
            "if (returned := (yield Call(tx.commit, shield=True))) is not None:",
        ),
    ),
    mutant(
        "queue: a failed message is acknowledged",
        "failing_handler",
        ("unhandled-ack",),
        (
            f"{CONSUMING}_deliver",
            "        raise\n    # If this fails",
            "        yield from self._operations.ack(message)\n        raise\n    # If this fails",
        ),
    ),
    mutant(
        "queue: a read asks for no acknowledgement",
        "failing_handler",
        ("lost",),
        (f"{OPERATIONS}_read_command", '"BLOCK", block_ms, ', '"BLOCK", block_ms, "NOACK", '),
    ),
    mutant(
        "queue: a message read after stop() is acknowledged",
        "stopped_in_a_read",
        ("unhandled-ack",),
        (
            f"{CONSUMING}next_to_hand_on",
            "return None if",
            "if message is not None and self.stopped.is_set():\n"
            "        yield from self._operations.ack(message)\n"
            "    return None if",
        ),
    ),
    mutant(
        "queue: a malformed entry is acknowledged unseen",
        "malformed_batch",
        ("unhandled-ack",),
        (
            f"{OPERATIONS}read",
            "    if malformed:",
            "    if malformed:\n        yield from self.ack_many(malformed)",
        ),
    ),
    mutant(
        "queue: recovery ignores how long an entry was idle",
        "slow_handler_beside_recovery",
        ("two-holders",),
        (f"{OPERATIONS}stale", '"IDLE", min_idle_ms, first', '"IDLE", 0, first'),
        (f"{OPERATIONS}claim", "self._consumer, min_idle_ms, *ids", "self._consumer, 0, *ids"),
    ),
    mutant(
        "queue: an ack is reported, and not sent",
        "steady",
        ("delivered-after-ack",),
        (
            f"{OPERATIONS}ack_many",
            "acked += yield from self._exchange(self._what(what, *chunk[:1]), command, whole)",
            "acked += len(command) and len(chunk)\n        yield from ()",
        ),
    ),
    mutant(
        "queue: a message is handed on twice",
        "steady",
        ("handled-after-ack",),
        (
            f"{CONSUMING}run",
            "yield from self._handle(handler, message, db_factory, fenced)",
            "yield from self._handle(handler, message, db_factory, fenced)\n"
            "                yield from self._handle(handler, message, db_factory, fenced)",
        ),
    ),
    mutant(
        "queue: a read returns pending entries, and never new ones",
        "steady",
        ("lost",),
        (f"{OPERATIONS}_read_command", 'self._stream, ">"', 'self._stream, "0"'),
    ),
]
