"""Connections of producers and consumers cut in XADD, XREADGROUP, XACK and the COMMIT between them, at every byte."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from conquiet.embedded import RedisServer
from conquiet.errors import QueueConnectionError
from conquiet.queue import (
    HandledEntries,
    PsycopgTransactions,
    QueueConfig,
    QueueConsumer,
    QueueMessage,
    RedisStreamsQueue,
    connect,
)
from conquiet.verify.history import History, check
from conquiet.verify.proxy import Cutting, PostgresFraming, Proxy, RedisFraming
from conquiet.verify.recording.streams import RecordedConsumer, RecordedQueue
from tests.addresses import at_port
from tests.campaign import campaign_size
from tests.chance import new_chance
from tests.faults.figures import Record
from tests.faults.jobs.test_connections import through
from tests.faults.recovery import double_valid_leases
from tests.integration.jobs.background import until

BACKLOG = 40
IDLE_MS = 300


def settings(name: str) -> QueueConfig:
    return QueueConfig("cuts", "group", name, block_ms=100, claim_idle_ms=IDLE_MS)


@pytest.fixture
def redis_proxy(redis_server: RedisServer, redis_url: str) -> Iterator[Proxy]:
    with Proxy(redis_server.port, RedisFraming) as proxy:
        yield proxy


@pytest.fixture
def postgres_proxy(postgres_dsn: str) -> Iterator[Proxy]:
    with Proxy(int(conninfo_to_dict(postgres_dsn)["port"] or 0), PostgresFraming) as proxy:
        yield proxy


class Consumers:
    """Two readers and one recovery loop, each on a thread, restarted whenever a cut has ended it."""

    def __init__(self, url: str, dsn: str, history: History) -> None:
        self._url = url
        self._dsn = dsn
        self._history = history
        self._handled = HandledEntries()
        self._over = threading.Event()
        self._running: dict[str, QueueConsumer] = {}
        self.failures: list[BaseException] = []
        self.ended_by: Counter[str] = Counter()
        self._threads = [
            threading.Thread(target=self._work, args=(name,)) for name in ("reader-1", "reader-2", "recovery")
        ]

    def __enter__(self) -> Consumers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for consumer in list(self._running.values()):
            consumer.stop()
        for thread in self._threads:
            thread.join()

    def _work(self, name: str) -> None:
        while not self._over.is_set():
            try:
                with connect(self._url) as redis, psycopg.connect(self._dsn) as connection:
                    self._running[name] = consumer = RecordedConsumer(redis, settings(name), self._history)
                    if self._over.is_set():
                        return
                    how: dict[str, Any] = {
                        "handler": self._effect,
                        "db_factory": PsycopgTransactions(connection),
                    }
                    if name == "recovery":
                        consumer.run_recovery(**how, interval_ms=50)
                    else:
                        consumer.run(**how)
            except (QueueConnectionError, psycopg.OperationalError) as error:
                self.ended_by[type(error).__name__] += 1
                self._over.wait(0.01)  # the server may be down
            except BaseException as error:  # any other error is a finding
                self.failures.append(error)
                return

    def _effect(self, message: QueueMessage, tx: Any) -> None:
        if self._handled.first_time(tx, message):
            tx.execute("INSERT INTO effects VALUES (%s, %s)", (message.id, message.payload["n"]))


class Producer:
    """A cut XADD is in the stream or not. Sent again it may be there twice: this producer accepts that."""

    def __init__(self, queue: RedisStreamsQueue) -> None:
        self._queue = queue
        self.numbers = 0
        self.unknown: Counter[int] = Counter()

    def some(self) -> None:
        for _ in range(10):
            while True:
                try:
                    self._queue.enqueue({"n": self.numbers})
                    break
                except QueueConnectionError:
                    self.unknown[self.numbers] += 1
            self.numbers += 1


@pytest.mark.campaign
@pytest.mark.timeout(180)
@pytest.mark.clause("S-21", "S-26")
def test_connections_cut_in_xadd_xreadgroup_xack_and_commit(
    redis_url: str,
    redis_proxy: Proxy,
    postgres_dsn: str,
    postgres_proxy: Proxy,
    tmp_path: Path,
    record_figure: Record,
    redis_server: RedisServer,
) -> None:
    cuts, seed = campaign_size(400), new_chance().seed_used  # on each available server
    with psycopg.connect(postgres_dsn) as connection:
        connection.execute("CREATE TABLE effects (entry_id TEXT, n INTEGER)")  # no key: a duplicate shows
        HandledEntries().create_table(connection)
    behind = at_port(redis_url, redis_proxy.port)
    words = [
        *((redis_proxy, "XACK"), (postgres_proxy, "COMMIT"), (redis_proxy, "XADD")),
        *((redis_proxy, "XACK"), (postgres_proxy, "COMMIT"), (redis_proxy, "XREADGROUP")),
    ]
    with ExitStack() as stack:
        history = stack.enter_context(History(tmp_path / "history"))
        direct = RedisStreamsQueue(stack.enter_context(connect(redis_url)), settings("looks"))
        producer = Producer(
            RecordedQueue(stack.enter_context(connect(behind)), settings("producer"), history)
        )
        consumers = stack.enter_context(Consumers(behind, through(postgres_proxy, postgres_dsn), history))
        with Cutting(words, cuts, seed) as cutting:
            while not cutting.is_over and not consumers.failures:
                backlog = direct.backlog_stats()
                if (backlog.lag or 0) + backlog.pending < BACKLOG:
                    producer.some()
                time.sleep(0.005)

        def is_drained() -> bool:
            backlog = direct.backlog_stats()
            return bool(consumers.failures) or (backlog.lag, backlog.pending) == (0, 0)

        until(is_drained, 60)
    assert consumers.failures == []
    with psycopg.connect(postgres_dsn) as connection:
        effects = connection.execute("SELECT entry_id, n FROM effects").fetchall()
    entries = Counter(entry_id for entry_id, _ in effects)
    per_number = Counter(n for _, n in effects)
    lost = producer.numbers - len(per_number)
    doubled = sum(entries.values()) - len(entries)
    verdict = check(tmp_path / "history")
    record_figure(
        f"connections cut in XADD, XREADGROUP, XACK ({redis_server.flavour}) and COMMIT",
        n=cutting.count,
        lost=lost,
        doubled=doubled,
        cut_points=cutting.points,
        cut_in=cutting.by_word,
        cut_in_commit_or_ack=cutting.within("COMMIT", "XACK"),
        double_valid_leases=double_valid_leases(verdict),
        messages=producer.numbers,
        consumers_ended=sum(consumers.ended_by.values()),
        xadd_unknown=producer.unknown.total(),
        of_these_in_the_stream_twice=sum(per_number.values()) - len(per_number),
        seed=seed,
    )
    # No one was told about entries that a cut XADD added: the checker does not know them.
    silent = [v for v in verdict.violations if v.kind == "phantom"]
    assert [v for v in verdict.violations if v not in silent] == []
    assert len(silent) <= producer.unknown.total()
    assert cutting.count == cuts
    assert cutting.within("COMMIT", "XACK") >= cuts * 6 // 10
    assert (lost, doubled) == (0, 0)
    for n, times in per_number.items():
        assert times <= 1 + producer.unknown[n]


@pytest.mark.campaign
def test_an_xack_at_one_byte_a_second_is_waited_for(
    redis_url: str, redis_proxy: Proxy, redis_server: RedisServer, record_figure: Record
) -> None:
    with connect(at_port(redis_url, redis_proxy.port), socket_timeout=3.0) as client:
        queue = RedisStreamsQueue(client, settings("slow"))
        queue.enqueue({})
        (message,) = queue.read(1000)
        strike = redis_proxy.strike("XACK", "reply", 0.0, fate="slow", rate=1.0)  # ":1\r\n"
        began = time.monotonic()
        queue.ack(message)
        assert strike.done.is_set()
        assert time.monotonic() - began > 3.5
        pending = queue.backlog_stats().pending  # on the same connection, whose replies arrive in order
        record_figure(f"{redis_server.flavour}: XACK at 1 B/s", n=1, lost=pending, whole=True)
        assert pending == 0


@pytest.mark.campaign
@pytest.mark.parametrize("word", ["XADD", "XREADGROUP", "XACK"])
@pytest.mark.parametrize("side", ["command", "reply"])
def test_a_command_that_is_swallowed_ends_with_an_error_that_says_so(
    redis_url: str,
    redis_proxy: Proxy,
    redis_server: RedisServer,
    word: str,
    side: Any,
    monkeypatch: pytest.MonkeyPatch,
    record_figure: Record,
) -> None:
    """A black hole: the client gives up after its timeout, says that the outcome is unknown, and goes on."""
    monkeypatch.setattr("conquiet.queue.wire.exchange._GRACE_SECONDS", 0.2)
    with (
        connect(redis_url) as plain,
        connect(at_port(redis_url, redis_proxy.port), socket_timeout=0.2) as client,
    ):
        direct, queue = RedisStreamsQueue(plain, settings("a")), RedisStreamsQueue(client, settings("a"))
        direct.enqueue_many([{"n": 1}, {"n": 2}])
        (message,) = queue.read(1000)
        calls: dict[str, Callable[[], object]] = {
            "XADD": lambda: queue.enqueue({"n": 3}),
            "XREADGROUP": lambda: queue.read(100),
            "XACK": lambda: queue.ack(message),
        }
        strike = redis_proxy.strike(word, side, 0.0, fate="hole")
        with pytest.raises(QueueConnectionError, match="Nothing was retried"):
            calls[word]()
        assert strike.done.is_set()
        happened = side == "reply"
        backlog = direct.backlog_stats()
        assert backlog.length == 2 + (happened and word == "XADD")
        assert backlog.pending == 1 + (happened and word == "XREADGROUP") - (happened and word == "XACK")
        queue.ack(message)  # on a new connection; harmless if already acknowledged
        assert direct.backlog_stats().pending == (happened and word == "XREADGROUP")
        swallowed = f"the answer to {word}" if happened else word
        rest = [*direct.claim_stale(0), *direct.read(100, 10)]
        lost = {1, 2} - {one.payload["n"] for one in (message, *rest)}
        record_figure(
            f"{redis_server.flavour}: black hole, {swallowed} is swallowed", n=1, lost=len(lost), whole=True
        )
        assert lost == set()
