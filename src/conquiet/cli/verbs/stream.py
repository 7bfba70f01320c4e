"""`conquiet stream`: shows a Redis stream and its consumers, and recovers messages that they left pending."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from conquiet.cli.declaration import GroupFlag, RedisFlag, group, verb
from conquiet.cli.output import session
from conquiet.cli.recovery import claim_entries, drop_entries, handle, print_entry, show_stale, shown_seconds
from conquiet.cli.settings import GROUP
from conquiet.errors import SettingsError

if TYPE_CHECKING:
    from conquiet.cli.redis_view import Consumer, RedisLook

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
            shown_seconds(found["oldest_pending_idle_ms"]),
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
            print_entry(entry)
        if follow:
            # After the last entry shown, or after the last existing entry if none was shown.
            for more in look.follow(stream, entries[-1]["id"] if entries else last, block_ms=1_000):
                for entry in more:
                    print_entry(entry)


@verb(
    app,
    "recover",
    "stream recover orders --group billing",
    "stream recover orders --group billing --handler shop.billing:bill",
    "stream recover orders --group billing --drop",
    "stream recover orders --group billing --drop --id 1700000000000-0 --yes",
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
        typer.Option(
            "--drop",
            help="Acknowledge the malformed ones, or those named by --id, without handling them; shows them and asks.",
        ),
    ] = False,
    ids: Annotated[
        list[str] | None,
        typer.Option(
            "--id",
            metavar="ENTRY",
            show_default=False,
            help="With --drop: drop this entry, malformed or not; several times for several.",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="With --drop: drop them without asking.")] = False,
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
    if (ids or yes) and not drop:
        raise SettingsError("--id and --yes are used with --drop")
    name = str(session.settings.need(GROUP, group))
    idle_ms = round(min_idle * 1000)
    with RedisLook(redis_url) as look:
        look.check_group(stream, name)
        stale = look.stale(stream, name, idle_ms, count)
        if handler is None and not claim and not drop:
            show_stale(stream, name, stale)
            return
        config = QueueConfig(stream, name, consumer or unique_consumer_name(), claim_idle_ms=max(idle_ms, 1))
        if drop:
            drop_entries(look, RedisStreamsQueue(look.redis, config), idle_ms, stale, ids or [], yes)
        elif handler is None:
            claim_entries(RedisStreamsQueue(look.redis, config), idle_ms, len(stale))
        else:
            handle(look.redis, config, len(stale), handler, transactions)


@verb(
    app,
    "consumers",
    "stream consumers orders --group billing",
    "stream consumers orders --group billing --forget-idle 7d",
)
def consumers(
    stream: Stream,
    group: GroupFlag = None,
    forget_idle: Annotated[
        str | None,
        typer.Option(
            "--forget-idle",
            metavar="AGE",
            show_default=False,
            help="Remove consumers that have been idle for AGE (12h, 7d) and have nothing pending.",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Remove them without asking.")] = False,
    redis_url: RedisFlag = None,
) -> None:
    """Show the consumers of a group; remove those that are long gone."""
    from conquiet.cli.durations import seconds_of
    from conquiet.cli.redis_view import RedisLook

    if yes and forget_idle is None:
        raise SettingsError("--yes confirms --forget-idle: name an age, such as --forget-idle 7d")
    idle_ms = None if forget_idle is None else round(seconds_of("--forget-idle", forget_idle) * 1000)
    name = str(session.settings.need(GROUP, group))
    with RedisLook(redis_url) as look:
        look.check_group(stream, name)
        found = look.consumers(stream, name)
        if idle_ms is None:
            _show_consumers({"stream": stream, "group": name}, found, "no consumers")
        else:
            _forget(look, stream, name, idle_ms, [c for c in found if c.idle_ms >= idle_ms], yes)


def _show_consumers(about: dict[str, Any], found: list[Consumer], none: str) -> None:
    from conquiet.queue.wire import name_of

    data = [{**consumer._asdict(), "name": name_of(consumer.name)} for consumer in found]
    rows = [(row["name"], row["pending"], shown_seconds(row["idle_ms"])) for row in data]
    table = session.table(("consumer", "pending", "idle (s)"), rows) if rows else none
    session.result({**about, "consumers": data}, table)


def _forget(look: RedisLook, stream: str, group: str, idle_ms: int, idle: list[Consumer], yes: bool) -> None:
    from conquiet.queue.wire import name_of

    free = [consumer.name for consumer in idle if not consumer.pending]
    names = ", ".join(name_of(name) for name in free[:10]) + (", …" if len(free) > 10 else "")
    question = f"remove {len(free)} consumers of group {group!r} for ever: {names}"
    if free and not session.confirmed("--forget-idle", question, yes):
        free = []
    forgotten = look.forget(stream, group, idle_ms, free) if free else []
    # Looked at again: what is pending or came back in between decides, not what was shown.
    left = {consumer.name: consumer for consumer in look.consumers(stream, group)}
    kept = [left[one.name] for one in idle if one.name in left and left[one.name].pending]
    texts = [f"forgotten: {len(forgotten)}", *(f"  {name_of(name)}" for name in forgotten)]
    if kept:
        texts.append(f"kept, because messages are pending for them: {len(kept)}")
        texts += [f"  {name_of(one.name)}: {one.pending} pending" for one in kept]
    session.result(
        {
            "forgotten": [name_of(name) for name in forgotten],
            "kept": [{**one._asdict(), "name": name_of(one.name)} for one in kept],
        },
        *texts,
    )
    if kept:
        session.note(f"conquiet stream recover {stream} --group {group} takes these messages over")
