"""enqueue --stream, and stream stats, tail and recover."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from conquiet.cli.redis_view import RedisLook
from conquiet.embedded import RedisServer
from conquiet.queue import QueueConfig, RedisStreamsQueue, connect
from tests.acceptance.cli.command import Shell
from tests.topologies import ClusterOfServers

HANDLERS = """
import sqlite3
from conquiet.queue import SqliteTransactions

database = sqlite3.connect("billing.db", isolation_level=None)
database.execute("CREATE TABLE IF NOT EXISTS invoices (number INTEGER)")
transactions = SqliteTransactions(database)

def bill(message, tx):
    if message.payload["order"] == 13:
        raise ValueError("no such order")
    tx.execute("INSERT INTO invoices VALUES (?)", (message.payload["order"],))

async def later(message, tx):
    bill(message, tx)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """One server is enough to test the command itself."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def url(server: RedisServer) -> str:
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
    return server.url


def left_behind(url: str, *orders: int) -> list[str]:
    """Messages that a consumer read and never acknowledged."""
    with connect(url) as client:
        queue = RedisStreamsQueue(client, QueueConfig("orders", "billing", "a consumer that died"))
        ids = queue.enqueue_many([{"order": order} for order in orders])
        assert len(queue.read(100, len(orders))) == len(orders)
    return ids


def pending(url: str) -> int:
    with connect(url) as client:
        return RedisStreamsQueue(client, QueueConfig("orders", "billing", "looker")).backlog_stats().pending


def test_messages_go_in_and_are_looked_at(shell: Shell, redis_url: str) -> None:
    shell.environment["REDIS_URL"] = redis_url
    assert shell("enqueue", "orders", '{"order": 1}', "--stream").code == 0
    more = shell("enqueue", "orders", "-", "--stream", "--json", stdin='{"order": 2}\n{"order": 3}\n').json
    empty = shell("stream", "stats", "orders", "--json").json
    assert empty == {"stream": "orders", "length": 3, "groups": []}  # it creates no group
    with redis.Redis.from_url(redis_url) as client:
        client.xadd("orders", {"wrong": "\x1b[2J"})
    with connect(redis_url) as client:
        queue = RedisStreamsQueue(client, QueueConfig("orders", "billing", "biller"))
        assert len(queue.read(100, 3)) == 3
    as_json, tail, one, stats = shell.each(
        "stream tail orders --count 3 --json",
        "stream tail orders",
        "stream stats orders --group billing --json",
        "stream stats orders",
    )
    lines = [json.loads(line) for line in as_json.out.splitlines()]
    assert [line.get("payload") for line in lines] == [{"order": 2}, {"order": 3}, None]
    assert lines[0]["id"] == more["ids"][0]
    assert '{"order": 1}' in tail.out.splitlines()[0]
    assert "malformed: its fields are 'wrong'" in tail.out.splitlines()[3]
    (group,) = one.json["groups"]
    assert (group["lag"], group["pending"], group["pending_by_consumer"]) == (1, 3, {"biller": 3})
    assert "biller: 3" in stats.out


def test_what_a_consumer_left_behind_is_shown_claimed_and_dropped(shell: Shell, url: str) -> None:
    ids = left_behind(url, 1, 2, 3)
    shell.environment |= {"CONQUIET_REDIS_URL": url, "CONQUIET_GROUP": "billing"}
    stale = shell("stream", "recover", "orders", "--min-idle", "0", "--json").json["stale"]
    assert [entry["id"] for entry in stale] == ids
    assert {entry["consumer"] for entry in stale} == {"a consumer that died"}
    nothing, claimed, stats, all_of_them = shell.each(
        "stream recover orders --min-idle 3600",
        "stream recover orders --min-idle 0 --claim --consumer ann --count 1 --json",
        "stream stats orders --json",
        "stream recover orders --min-idle 0 --claim --consumer bob --json",
    )
    assert "nothing is stale" in nothing.out
    assert claimed.json["claimed"] == [{"id": ids[0], "payload": {"order": 1}}]
    assert stats.json["groups"][0]["pending_by_consumer"] == {"a consumer that died": 2, "ann": 1}
    assert [entry["id"] for entry in all_of_them.json["claimed"]] == ids
    with connect(url) as client:
        client.xadd("orders", {"wrong": "field"})
        client.xreadgroup("billing", "a consumer that died", {"orders": ">"})
    drop = "stream recover orders --min-idle 0 --drop"
    asked, dropped, unknown, named, left = shell.each(
        drop,
        f"{drop} --yes",
        f"{drop} --yes --id 1-0",
        f"{drop} --yes --id {ids[1]}",
        "stream recover orders --min-idle 0 --json",
    )
    assert asked.code == 2
    assert "--drop would drop 1 entries of group 'billing' unhandled. Add --yes to confirm" in asked.err
    assert "malformed: its fields are 'wrong'" in dropped.out
    assert "order" not in dropped.out
    assert "dropped: 1\nnot malformed, and left as they are: 3" in dropped.out
    assert unknown.code == 1
    assert "1-0. Nothing was dropped" in unknown.err
    assert '{"order": 2}' in named.out
    assert "dropped: 1" in named.out
    assert [entry["id"] for entry in left.json["stale"]] == [ids[0], ids[2]]


def test_entries_that_were_deleted_are_dropped_from_the_pending_list(shell: Shell, url: str) -> None:
    ids = left_behind(url, 1, 2)
    with connect(url) as client:
        client.xdel("orders", ids[0])
    shell.environment |= {"CONQUIET_REDIS_URL": url, "CONQUIET_GROUP": "billing"}
    dropped = shell("stream", "recover", "orders", "--min-idle", "0", "--drop", "--yes", "--json").json
    assert (dropped["dropped"], dropped["gone"]) == ([], [ids[0]])
    assert pending(url) == 1


def test_a_handler_recovers_with_its_transaction_and_what_it_refuses_stays(
    shell: Shell, url: str, tmp_path: Path
) -> None:
    (tmp_path / "billing.py").write_text(HANDLERS)
    shell.environment |= {"REDIS_URL": url, "CONQUIET_GROUP": "billing"}
    ids = left_behind(url, 1, 2, 13)
    recover = ("stream", "recover", "orders", "--min-idle", "0", "--handler", "billing:bill")
    done = shell(*recover, "--transactions", "billing:transactions")
    done.refused(1, f"entry {ids[2]}: ValueError: no such order", "2 were handled before it")
    assert pending(url) == 1
    import sqlite3

    database = sqlite3.connect(tmp_path / "billing.db")
    assert database.execute("SELECT number FROM invoices ORDER BY 1").fetchall() == [(1,), (2,)]
    database.close()
    shell(*recover[:-1], "billing:later").refused(1, f"entry {ids[2]}: AsyncCallableError", "a coroutine")
    assert pending(url) == 1
    left_behind(url, 4)
    with redis.Redis.from_url(url) as client:
        client.xack("orders", "billing", ids[2])
    assert shell(*recover, "--transactions", "billing:transactions", "--json").json["handled"] != []
    assert pending(url) == 0


def test_what_cannot_be_meant_is_refused(shell: Shell, url: str) -> None:
    left_behind(url, 1)
    with connect(url) as client:
        client.set("plain", "x")
    shell("stream", "stats", "orders").refused(2, "--redis-url", "CONQUIET_REDIS_URL", "REDIS_URL")
    shell("stream", "tail", "ordres", REDIS_URL=url).refused(1, "no stream 'ordres'", "orders")
    recover = "stream recover orders --group billing --min-idle 0"
    shell.refuses(
        {
            "stream stats ordres": (1, "no stream 'ordres'", "orders"),
            "stream stats plain": (1, "'plain' is a string"),
            "stream stats orders --group biling": (1, "no consumer group 'biling'", "billing"),
            "stream recover orders": (2, "--group", "CONQUIET_GROUP"),
            "stream recover orders --group biling": (1, "billing"),
            f"{recover} --claim --drop": (2, "--claim and --drop"),
            f"{recover} --claim --transactions a:b": (2, "--transactions is used with --handler"),
            f"{recover} --handler nowhere:bill": (2, "no module 'nowhere'", "--handler"),
            "enqueue orders {} --stream --delay 3": (2, "a Redis stream has no --delay"),
            "stream stats orders --redis-url http://host": (2, "--redis-url", "redis://"),
            "stream stats orders --redis-url redis://127.0.0.1:1": (3, "Connection refused", "--redis-url"),
            "enqueue orders {} --stream --redis-url redis://127.0.0.1:1": (3, "Connection refused"),
        },
        REDIS_URL=url,
    )
    with connect(url) as client:
        assert client.exists("ordres") == 0
    assert pending(url) == 1


def test_a_wrong_password_is_told_and_not_shown(shell: Shell) -> None:
    with RedisServer(config={"requirepass": "secret-of-the-server"}) as server:
        wrong = server.url.replace("secret-of-the-server", "hunter2")
        without = server.url.replace(":secret-of-the-server@", "")
        told = (3, "password in --redis-url")
        results = shell.refuses(
            {f"stream stats orders --redis-url {wrong}": told, f"stream tail a --redis-url {without}": told}
        )
    assert "hunter2" not in results[0].err


def test_tail_follows_until_it_is_interrupted(shell: Shell, url: str) -> None:
    import signal

    left_behind(url, 1)
    shell.environment["REDIS_URL"] = url
    with shell.start("stream", "tail", "orders", "--follow", "--json") as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["payload"] == {"order": 1}
        left_behind(url, 2)
        assert json.loads(process.stdout.readline())["payload"] == {"order": 2}
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130


def consumers_of(url: str) -> set[bytes]:
    with redis.Redis.from_url(url) as client:
        return {consumer["name"] for consumer in client.xinfo_consumers("orders", "billing")}


def test_consumers_that_hold_nothing_are_forgotten_and_no_others(shell: Shell, url: str) -> None:
    shell.environment |= {"REDIS_URL": url, "CONQUIET_GROUP": "billing"}
    held = left_behind(url, 1, 2)
    with redis.Redis.from_url(url) as client:
        for name in ("host-1-dead", b"host-2-\xff"):
            client.execute_command("XGROUP", "CREATECONSUMER", "orders", "billing", name)
    shown = shell("stream", "consumers", "orders", "--json").json
    assert {(one["name"], one["pending"]) for one in shown["consumers"]} == {
        ("a consumer that died", 2), ("host-1-dead", 0), ("host-2-\\xff", 0),
    }  # fmt: skip
    plain, far, unconfirmed, wrong, alone = shell.each(
        "stream consumers orders",
        "stream consumers orders --forget-idle 7d --yes --json",
        "stream consumers orders --forget-idle 0.001s",
        "stream consumers orders --forget-idle soon",
        "stream consumers orders --yes",
    )
    assert "host-1-dead" in plain.out
    assert far.json == {"forgotten": [], "kept": []}  # none has been idle for so long
    assert (unconfirmed.code, wrong.code, alone.code) == (2, 2, 2)
    assert "would remove 2 consumers of group 'billing' for ever" in unconfirmed.err
    assert "Add --yes to confirm" in unconfirmed.err
    assert "--forget-idle must be a duration above 0, such as 90s, 30m, 12h or 7d, not 'soon'" in wrong.err
    assert len(consumers_of(url)) == 3  # nothing was done so far
    done = shell("stream", "consumers", "orders", "--forget-idle", "0.001s", "--yes")
    assert done.code == 0
    assert "forgotten: 2" in done.out
    assert "kept, because messages are pending for them: 1\n  a consumer that died: 2 pending" in done.out
    assert "conquiet stream recover orders --group billing" in done.err
    assert consumers_of(url) == {b"a consumer that died"}
    assert pending(url) == len(held)  # the queue's own look does not enter its name


def test_a_message_delivered_after_the_look_saves_its_consumer(url: str) -> None:
    """The server checks again in the step that removes: XGROUP DELCONSUMER would drop the message."""
    with RedisLook(url) as look:
        (entry_id,) = left_behind(url, 1)
        name = b"a consumer that died"
        assert look.forget("orders", "billing", 0, [name, b"never heard of"]) == []
        assert pending(url) == 1
        with redis.Redis.from_url(url) as client:
            client.xack("orders", "billing", entry_id)
        assert look.forget("orders", "billing", 3_600_000, [name]) == []  # it was active a moment ago
        assert look.forget("orders", "billing", 0, [name]) == [name]
    assert consumers_of(url) == set()


@pytest.mark.parametrize(("answer", "left"), [("n", 1), ("y", 0)])
def test_at_a_terminal_it_asks_before_it_removes(url: str, answer: str, left: int) -> None:
    with redis.Redis.from_url(url) as client:
        client.xgroup_create("orders", "billing", "0", mkstream=True)
        client.execute_command("XGROUP", "CREATECONSUMER", "orders", "billing", "host-1-dead")
    command = [
        "stream",
        "consumers",
        "orders",
        "--group",
        "billing",
        "--forget-idle",
        "0.001s",
        "--redis-url",
    ]
    keyboard, terminal = os.openpty()
    try:
        os.write(keyboard, f"{answer}\n".encode())
        done = subprocess.run(
            [sys.executable, "-m", "conquiet", *command, url],
            stdin=terminal,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    finally:
        os.close(keyboard)
        os.close(terminal)
    assert "remove 1 consumers of group 'billing' for ever: host-1-dead? [y/N]" in done.stderr
    assert f"forgotten: {1 - left}" in done.stdout
    assert len(consumers_of(url)) == left


def test_a_stream_of_a_cluster(shell: Shell, redis_cluster: ClusterOfServers) -> None:
    """The command knows a node, and every stream is on some other one."""
    shell.environment["REDIS_URL"] = redis_cluster.url
    for stream in ("orders", "b", "c"):
        assert shell("enqueue", stream, '{"order": 1}', "--stream").code == 0
        assert shell("stream", "stats", stream, "--json").json == {
            "stream": stream,
            "length": 1,
            "groups": [],
        }
    shell("stream", "stats", "other").refused(1, "there is no stream 'other'")
