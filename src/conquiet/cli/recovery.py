"""`conquiet stream recover`: what happens to the entries that a consumer left behind."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from conquiet.cli.output import session
from conquiet.errors import ForeignError, MalformedEntryError, UnknownNameError
from conquiet.signals import stop_on_sigterm

if TYPE_CHECKING:
    from conquiet.cli.redis_view import PendingEntry, RedisLook
    from conquiet.queue import ClaimedMessages, MalformedEntry, QueueConfig, QueueMessage, RedisStreamsQueue

__all__ = ["claim_entries", "drop_entries", "handle", "print_entry", "show_stale", "shown_seconds"]


def handle(redis: Any, config: QueueConfig, count: int, handler: str, transactions: str | None) -> None:
    """Claim, handle, commit and acknowledge one message at a time, like `run_recovery` of the queue, at most `count`."""
    from conquiet.cli.targets import target
    from conquiet.flow import refuse_deferred, run
    from conquiet.payload import DEFAULT_LIMITS
    from conquiet.queue import NoTransactions
    from conquiet.queue.flows import Delivery, StreamOperations

    function = target(handler, "--handler")
    factory = NoTransactions() if transactions is None else target(transactions, "--transactions")
    consuming = Delivery(StreamOperations(redis, config, DEFAULT_LIMITS, awaits=False), config)
    handled: list[str] = []

    def told(message: QueueMessage, tx: Any) -> None:
        try:
            refuse_deferred(function, function(message, tx))
        except Exception as error:
            raise ForeignError(
                f"{handler} failed for entry {message.id}: {type(error).__qualname__}: {error}. The entry stays pending, "
                f"for consumer {config.consumer_name}; {len(handled)} were handled before it"
            ) from error
        handled.append(message.id)

    with stop_on_sigterm(consuming.stopped.set), _messages_not_logged():
        run(consuming.recover(told, factory, count))
    session.result({"handled": handled, "consumer": config.consumer_name}, f"handled: {len(handled)}")


@contextmanager
def _messages_not_logged() -> Iterator[None]:
    """The command itself says what became of the messages."""

    def is_about_no_message(record: logging.LogRecord) -> bool:
        return not hasattr(record, "message_id")

    log = logging.getLogger("conquiet.queue")
    log.addFilter(is_about_no_message)
    try:
        yield
    finally:
        log.removeFilter(is_about_no_message)


def drop_entries(
    look: RedisLook,
    queue: RedisStreamsQueue,
    idle_ms: int,
    stale: list[PendingEntry],
    named: list[str],
    yes: bool,
) -> None:
    """Acknowledge malformed or named entries, after showing them. Good messages are dropped only by name."""
    from conquiet.flow import run

    found = look.entries(queue.config.stream_key, [entry.id for entry in stale])
    gone = sorted({entry.id for entry in stale} - {entry["id"] for entry in found})
    chosen = [entry for entry in found if (entry["id"] in named if named else "malformed" in entry)]
    if missing := sorted(set(named) - {entry["id"] for entry in chosen}):
        raise UnknownNameError(
            f"not among the {len(stale)} entries that are pending and idle for {idle_ms / 1000:g} s: {', '.join(missing)}. "
            "Nothing was dropped; --min-idle and --count decide which are looked at"
        )
    if not session.json:
        for entry in chosen:
            print_entry(entry)
    question = f"drop {len(chosen)} entries of group {queue.config.consumer_group!r} unhandled"
    if chosen and not session.confirmed("--drop", question, yes):
        chosen = []
    dropped: list[dict[str, Any]] = []
    for entry in chosen:
        # Claimed first, and one by one: what its consumer has acknowledged or taken up again in between is left alone.
        messages, malformed = run(queue.operations.claim([entry["id"]], idle_ms))
        claimed: list[QueueMessage | MalformedEntry] = [*messages, *malformed]
        for taken in claimed:
            queue.ack_if_owner(taken)
            dropped.append(entry)
    if gone:
        run(queue.operations.claim(gone, idle_ms))  # which takes them out of the pending list
    good = sum("malformed" not in entry for entry in found)
    texts = [f"dropped: {len(dropped)}"]
    if good and not named:
        texts.append(f"not malformed, and left as they are: {good} (--handler handles them, --id drops one)")
    texts += _gone(gone)
    session.result({"dropped": dropped, "gone": gone, "consumer": queue.config.consumer_name}, *texts)


def claim_entries(queue: RedisStreamsQueue, idle_ms: int, count: int) -> None:
    name = queue.config.consumer_name
    entries: list[QueueMessage | MalformedEntry] = []
    gone: list[str] = []
    if count:
        try:
            claimed = queue.claim_stale(idle_ms, count)
        except MalformedEntryError as error:
            claimed = cast("ClaimedMessages", error.messages)
            entries += error.entries
        entries += claimed
        gone += claimed.gone
    taken: list[dict[str, Any]] = []
    for entry in entries:
        shown = _described(entry)
        if not session.json:
            print_entry(shown)
        taken.append(shown)
    texts = [f"claimed: {len(taken)}"]
    if taken:
        texts.append(f"now pending for consumer {name}, until they are acknowledged or taken over again")
    texts += _gone(gone)
    session.result({"claimed": taken, "gone": gone, "consumer": name}, *texts)


def _gone(ids: list[str]) -> list[str]:
    return [f"pending, but trimmed or deleted before they were handled: {', '.join(ids)}"] if ids else []


def _described(message: QueueMessage | MalformedEntry) -> dict[str, Any]:
    from conquiet.queue import QueueMessage

    if isinstance(message, QueueMessage):
        return {"id": message.id, "payload": message.payload}
    return {"id": message.id, "malformed": message.reason}


def show_stale(stream: str, group: str, stale: list[PendingEntry]) -> None:
    data = [entry._asdict() for entry in stale]
    rows = [(entry.id, entry.consumer, shown_seconds(entry.idle_ms), entry.deliveries) for entry in stale]
    table = (
        session.table(("entry", "consumer", "idle (s)", "deliveries"), rows) if rows else "nothing is stale"
    )
    session.result({"stream": stream, "group": group, "stale": data}, table)
    if rows:
        session.note("nothing was changed: --handler, --claim or --drop takes them over")


def print_entry(entry: dict[str, Any]) -> None:
    what = entry.get("malformed")
    text = f"malformed: {what}" if what else json.dumps(entry.get("payload"), ensure_ascii=False)
    session.result(entry, "  ".join(part for part in (entry.get("at", ""), entry["id"], text) if part))


def shown_seconds(milliseconds: int | None) -> str | None:
    return None if milliseconds is None else f"{milliseconds / 1000:,.1f}"
