"""`conquiet stream`: shows a Redis stream, and recovers messages that its consumers left pending."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from conquiet.cli.declaration import GroupFlag, RedisFlag, group, verb
from conquiet.cli.output import session
from conquiet.cli.settings import GROUP
from conquiet.errors import ForeignError, MalformedEntryError, SettingsError
from conquiet.signals import stop_on_sigterm

if TYPE_CHECKING:
    from conquiet.cli.redis_view import PendingEntry
    from conquiet.queue import ClaimedMessages, MalformedEntry, QueueConfig, QueueMessage, RedisStreamsQueue

__all__ = ["app"]

app = group("Show Redis streams; recover messages that consumers left pending.")

Stream = Annotated[str, typer.Argument(help="The stream.", metavar="STREAM")]


@verb(app, "stats", "stream stats orders", "stream stats orders --group billing --json")
def stats(stream: Stream, group: GroupFlag = None, redis_url: RedisFlag = None) -> None:
    """Show the length of a stream and the backlog of each group."""
    from conquiet.cli.redis_view import RedisLook

    with RedisLook(redis_url) as look:
        names = look.groups(stream)
        if (
            group is not None
        ):  # only the flag counts: the setting is for verbs that need a group, and here all groups are shown
            look.check_group(stream, group)
            names = [group]
        length = look.length(stream)
        groups = [look.backlog(stream, name) for name in names]
    columns = ("group", "lag", "pending", "oldest pending", "idle (s)", "by consumer")
    rows = [
        (
            found["group"],
            "?" if found["lag"] is None else found["lag"],
            found["pending"],
            found["oldest_pending_id"],
            _seconds(found["oldest_pending_idle_ms"]),
            ", ".join(f"{name}: {count}" for name, count in found["pending_by_consumer"].items()),
        )
        for found in groups
    ]
    texts = [f"{stream}: {length} entries", session.table(columns, rows) if rows else "no consumer groups"]
    session.result({"stream": stream, "length": length, "groups": groups}, *texts)


@verb(app, "tail", "stream tail orders", "stream tail orders --count 0 --follow --json")
def tail(
    stream: Stream,
    count: Annotated[
        int, typer.Option("--count", help="How many of the newest entries to show.", min=0)
    ] = 10,
    follow: Annotated[
        bool, typer.Option("--follow", help="Continue with new entries as they arrive.")
    ] = False,
    redis_url: RedisFlag = None,
) -> None:
    """Show the newest entries, one per line, without a group and without acknowledging them."""
    from conquiet.cli.redis_view import RedisLook

    with RedisLook(redis_url) as look:
        look.groups(stream)
        last = look.last_id(stream)
        entries = look.newest(stream, count)
        for entry in entries:
            _print_entry(entry)
        if follow:
            # After the last entry shown, or after the last existing entry if none was shown.
            for more in look.follow(stream, entries[-1]["id"] if entries else last, block_ms=1_000):
                for entry in more:
                    _print_entry(entry)


@verb(
    app,
    "recover",
    "stream recover orders --group billing",
    "stream recover orders --group billing --handler shop.billing:bill",
    "stream recover orders --group billing --drop --count 1",
)
def recover(
    stream: Stream,
    group: GroupFlag = None,
    min_idle: Annotated[
        float, typer.Option("--min-idle", help="Seconds since the entry was last delivered.", min=0)
    ] = 60.0,
    count: Annotated[int, typer.Option("--count", help="How many at most.", min=1)] = 100,
    handler: Annotated[
        str | None,
        typer.Option(
            "--handler",
            metavar="MODULE:NAME",
            show_default=False,
            help="Take over each message, call handler(message, tx), acknowledge it.",
        ),
    ] = None,
    transactions: Annotated[
        str | None,
        typer.Option(
            "--transactions",
            metavar="MODULE:NAME",
            show_default=False,
            help="The transaction factory for tx, which is committed before the acknowledgement; default: tx commits nothing.",
        ),
    ] = None,
    claim: Annotated[
        bool, typer.Option("--claim", help="Take them over for --consumer and show them; they stay pending.")
    ] = False,
    drop: Annotated[
        bool,
        typer.Option("--drop", help="Take them over, show them, acknowledge them without handling them."),
    ] = False,
    consumer: Annotated[
        str | None,
        typer.Option(
            "--consumer",
            metavar="NAME",
            help="The consumer that takes over; default: a unique name.",
            show_default=False,
        ),
    ] = None,
    redis_url: RedisFlag = None,
) -> None:
    """Recover pending messages whose consumer died: Redis does not deliver them to another consumer.

    Without --handler, --claim or --drop this shows them and changes nothing.
    """
    from conquiet.cli.redis_view import RedisLook
    from conquiet.queue import QueueConfig, RedisStreamsQueue, unique_consumer_name

    if sum((handler is not None, claim, drop)) > 1:
        raise SettingsError("--handler, --claim and --drop exclude each other: give one of them")
    if transactions is not None and handler is None:
        raise SettingsError("--transactions is used with --handler")
    name = str(session.settings.need(GROUP, group))
    idle_ms = round(min_idle * 1000)
    with RedisLook(redis_url) as look:
        look.check_group(stream, name)
        stale = look.stale(stream, name, idle_ms, count)
        if handler is None and not claim and not drop:
            _show_stale(stream, name, stale)
            return
        config = QueueConfig(stream, name, consumer or unique_consumer_name(), claim_idle_ms=max(idle_ms, 1))
        if handler is None:
            _claim(RedisStreamsQueue(look.redis, config), idle_ms, len(stale), drop)
        else:
            _handle(look.redis, config, len(stale), handler, transactions)


def _handle(redis: Any, config: QueueConfig, count: int, handler: str, transactions: str | None) -> None:
    """Claim, handle, commit and acknowledge one message at a time, like `run_recovery` of the queue, at most `count`."""
    from conquiet.cli.targets import target
    from conquiet.flow import run
    from conquiet.payload import DEFAULT_LIMITS
    from conquiet.queue import NoTransactions
    from conquiet.queue.flows import Delivery, StreamOperations

    function = target(handler, "--handler")
    factory = NoTransactions() if transactions is None else target(transactions, "--transactions")
    consuming = Delivery(StreamOperations(redis, config, DEFAULT_LIMITS, awaits=False), config)
    handled: list[str] = []

    def told(message: QueueMessage, tx: Any) -> None:
        try:
            function(message, tx)
        except Exception as error:
            raise ForeignError(
                f"{handler} failed for entry {message.id}: {type(error).__qualname__}: {error}. The entry stays pending, "
                f"for consumer {config.consumer_name}; {len(handled)} were handled before it"
            ) from error
        handled.append(message.id)

    with stop_on_sigterm(consuming.stopped.set):
        for _ in range(count):
            if consuming.stopped.is_set() or not run(consuming.recover_one(told, factory, None)):
                break
    session.result({"handled": handled, "consumer": config.consumer_name}, f"handled: {len(handled)}")


def _claim(queue: RedisStreamsQueue, idle_ms: int, count: int, drop: bool) -> None:
    done, name = "dropped" if drop else "claimed", queue.config.consumer_name
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
            _print_entry(shown)
        if drop:
            queue.ack_if_owner(entry)
        taken.append(shown)
    texts = [f"{done}: {len(taken)}"]
    if taken and not drop:
        texts.append(f"now pending for consumer {name}, until they are acknowledged or taken over again")
    if gone:
        texts.append(f"pending, but trimmed or deleted before they were handled: {', '.join(gone)}")
    session.result({done: taken, "gone": gone, "consumer": name}, *texts)


def _described(message: QueueMessage | MalformedEntry) -> dict[str, Any]:
    from conquiet.queue import QueueMessage

    if isinstance(message, QueueMessage):
        return {"id": message.id, "payload": message.payload}
    return {"id": message.id, "malformed": message.reason}


def _show_stale(stream: str, group: str, stale: list[PendingEntry]) -> None:
    data = [entry._asdict() for entry in stale]
    rows = [(entry.id, entry.consumer, _seconds(entry.idle_ms), entry.deliveries) for entry in stale]
    table = (
        session.table(("entry", "consumer", "idle (s)", "deliveries"), rows) if rows else "nothing is stale"
    )
    session.result({"stream": stream, "group": group, "stale": data}, table)
    if rows:
        session.note("nothing was changed: --handler, --claim or --drop takes them over")


def _print_entry(entry: dict[str, Any]) -> None:
    what = entry.get("malformed")
    text = f"malformed: {what}" if what else json.dumps(entry.get("payload"), ensure_ascii=False)
    session.result(entry, "  ".join(part for part in (entry.get("at", ""), entry["id"], text) if part))


def _seconds(milliseconds: int | None) -> str | None:
    return None if milliseconds is None else f"{milliseconds / 1000:,.1f}"
