"""Tests what the queue guarantees when consumers die, pause or are stopped, and when connections break."""

from __future__ import annotations

import random
import signal
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from conquiet.errors import QueueConnectionError
from conquiet.queue import NoTransactions, QueueConfig, QueueMessage, RedisStreamsQueue
from conquiet.verify.background import Consumers, hushed, until
from conquiet.verify.findings import Check, Extent, asked, bound, judge, require
from conquiet.verify.history import History
from conquiet.verify.owner import PLACES
from conquiet.verify.processes import WorkerProcess, kill_until
from conquiet.verify.proxied_servers import through_redis
from conquiet.verify.proxy import Cutting
from conquiet.verify.recording.streams import RecordedConsumer, RecordedQueue
from conquiet.verify.scratch_space import StreamScratch
from conquiet.verify.stream_worker import GROUP

__all__ = ["stream_faults"]

_LIVES = 0.4  # seconds of work for each process that is killed
_IDLE_MS = 500  # after which another consumer may claim a message
_LONG_MS = 60_000
_BACKLOG = 20


def stream_faults(scratch: StreamScratch, extent: Extent, folder: Path) -> list[Check]:
    """Histories are written to `folder`."""
    of = _Faults(scratch, extent, folder)
    return [
        Check("consumers killed -9: nothing lost", of.kills),
        Check("connections cut in XADD and XACK: nothing lost", of.cuts),
        Check("consumers paused until others took over: their late acknowledgements are refused", of.pauses),
        Check("consumers stopped by SIGTERM: nothing more is taken, nothing is left half done", of.terms),
    ]


class _Faults:
    def __init__(self, scratch: StreamScratch, extent: Extent, folder: Path) -> None:
        self._scratch = scratch
        self._extent = extent
        self._folder = folder

    def kills(self) -> str:
        count, kills = self._extent.work, asked(self._extent.kills, "kills")
        stream, effects = self._scratch.key("killed"), self._scratch.key("killed-effects")
        with hushed(), History(self._folder / "kills") as history:
            queue = self._recorded_queue(stream, history)
            queue.enqueue_many({"n": n} for n in range(count))
            total = count

            def feed() -> None:
                nonlocal total
                queue.enqueue_many({"n": n} for n in range(total, total + 2 * PLACES))
                total += 2 * PLACES

            def handle(message: QueueMessage) -> None:
                self._scratch.redis.hincrby(effects, str(message.payload["n"]), 1)

            seconds = 2 * _LIVES * kills * 2 * PLACES / count
            order = self._order("messages", stream, history, effects=effects, seconds=seconds)
            with Consumers(self._recovery(stream, history, handle)):
                kill_until(order, kills, left=lambda: self._left(queue), feed=feed)
        judge(history.path, fenced=False)
        lost = total - self._scratch.redis.hlen(effects)
        require(not lost, f"{lost} of {total} messages were never handled")
        again = sum(map(int, self._scratch.redis.hvals(effects))) - total
        return f"{total} messages, {kills} kills, 0 lost, {again} delivered again; {bound(kills)}"

    def cuts(self) -> str:
        """The entry of a cut XADD may be in the stream. This producer sends it again, so it may be there twice."""
        cuts = asked(self._extent.cuts, "cuts")
        stream = self._scratch.key("cut")
        handled: Counter[int] = Counter()
        unknown: Counter[int] = Counter()
        lock = threading.Lock()
        told = 0

        def handle(message: QueueMessage) -> None:
            with lock:
                handled[message.payload["n"]] += 1

        with (
            hushed(),
            History(self._folder / "cuts") as history,
            through_redis(self._scratch.redis) as (proxy, behind),
        ):
            direct = self._recorded_queue(stream, history)
            producer = RecordedQueue(behind, self._config(stream, "producer"), history)

            def feed() -> bool:
                """Keep a backlog; always False."""
                nonlocal told
                for _ in range(_BACKLOG if self._left(direct) < _BACKLOG else 0):
                    try:
                        producer.enqueue({"n": told})
                        told += 1
                    except QueueConnectionError:
                        unknown[told] += 1
                return False

            readers = (self._reader(stream, history, handle, behind, f"reader-{n}") for n in range(2))
            with Consumers(*readers, self._recovery(stream, history, handle, behind)) as consumers:
                words = [(proxy, "XACK"), (proxy, "XADD"), (proxy, "XACK")]
                with Cutting(words, cuts, random.randrange(2**32)) as cutting:
                    until(
                        lambda: cutting.is_over or consumers.failures or feed(), f"{cuts} cuts", patience=120
                    )
                until(
                    lambda: consumers.failures or not self._left(direct), "after the cuts everything is done"
                )
        require(cutting.count == cuts, f"only {cutting.count} of {cuts} connections could be cut")
        judge(history.path, fenced=False)
        lost = told - len(handled.keys() & set(range(told)))
        require(not lost, f"{lost} of {told} messages were never handled")
        again = handled.total() - told
        places = f"{cuts} cuts at {cutting.points} kinds of place"
        return f"{told} messages, {places}, 0 lost, {again} handled again; {bound(cuts)}"

    def pauses(self) -> str:
        pauses = asked(self._extent.signals, "signals")
        stream = self._scratch.key("paused")
        with hushed(), History(self._folder / "pauses") as history:
            queue = self._recorded_queue(stream, history)
            with WorkerProcess(self._order("late acks", stream, history, held=True)) as process:
                for number in range(pauses):
                    message = queue.enqueue({"n": number})
                    process.wait_for(f"at {message}")
                    process.pause()
                    with Consumers(self._recovery(stream, history, lambda message: None)):
                        until(lambda: not self._left(queue), "the message of a paused consumer is taken over")
                    process.resume()
                    process.go_on(message)
                process.send(signal.SIGTERM)
                process.wait_for("stop")
                counts = process.end()
        require(
            (counts["acked"], counts["refused"]) == (0, pauses),
            f"of {pauses} late ack_if_owner {counts['acked']} were accepted, {counts['refused']} refused",
        )
        judge(history.path, fenced=False)
        return f"{pauses} pauses, {pauses} taken over, {pauses} late ack_if_owner refused; {bound(pauses)}"

    def terms(self) -> str:
        """Stopped in the handler of one message, with others in the stream: that one is finished, no other is taken."""
        terms = asked(self._extent.signals, "signals")
        messages = 3
        for number in range(terms):
            stream, effects = (
                self._scratch.key(f"ended-{number}"),
                self._scratch.key(f"ended-effects-{number}"),
            )
            with hushed(), History(self._folder / f"terms-{number}") as history:
                queue = self._recorded_queue(stream, history)
                first, *_ = queue.enqueue_many({"n": n} for n in range(messages))
                order = self._order("messages", stream, history, held=True, effects=effects)
                order["claim_idle_ms"] = _LONG_MS
                with WorkerProcess(order) as process:
                    process.wait_for(f"at {first}")
                    process.send(signal.SIGTERM)
                    process.wait_for("stop")
                    process.go_on(first)
                    counts = process.end()
                stats = queue.backlog_stats()
                require(
                    counts["handled"] == 1, f"{counts['handled']} messages were handled, not the one begun"
                )
                require(stats.pending == 0, f"{stats.pending} messages were left pending")
                require(
                    stats.lag in (None, messages - 1), f"{stats.lag} of {messages - 1} are not yet delivered"
                )
                with Consumers(self._reader(stream, history, lambda message: None)):
                    until(partial(self._is_done, queue), "the rest is handled")
            judge(history.path, fenced=False)
        return f"{terms} consumers, {terms} messages finished, 0 pending, 0 lost; {bound(terms)}"

    # -- shared by the checks ------------------------------------------------------------------------------------

    def _config(self, stream: str, name: str) -> QueueConfig:
        return QueueConfig(stream, GROUP, name, block_ms=100, claim_idle_ms=_IDLE_MS)

    def _order(self, work: str, stream: str, history: History, **more: Any) -> dict[str, Any]:
        order = {"work": work, "url": self._scratch.url, "stream": stream, "history": history.path}
        return order | {"held": False, "claim_idle_ms": _IDLE_MS} | more

    def _recorded_queue(self, stream: str, history: History) -> RecordedQueue:
        return RecordedQueue(self._scratch.redis, self._config(stream, "owner"), history)

    def _left(self, queue: RedisStreamsQueue) -> int:
        stats = queue.backlog_stats()
        return (stats.lag or 0) + stats.pending

    def _is_done(self, queue: RedisStreamsQueue) -> bool:
        return not self._left(queue)

    def _reader(
        self,
        stream: str,
        history: History,
        handle: Callable[[QueueMessage], None],
        redis: Any = None,
        name: str = "reader",
    ) -> tuple[Callable[[], RecordedConsumer], Callable[[RecordedConsumer], None]]:
        redis = self._scratch.redis if redis is None else redis
        return (
            lambda: RecordedConsumer(redis, self._config(stream, name), history),
            lambda consumer: consumer.run(
                handler=lambda message, tx: handle(message), db_factory=NoTransactions()
            ),
        )

    def _recovery(
        self, stream: str, history: History, handle: Callable[[QueueMessage], None], redis: Any = None
    ) -> tuple[Callable[[], RecordedConsumer], Callable[[RecordedConsumer], None]]:
        make, _ = self._reader(stream, history, handle, redis, "recovery")
        return make, lambda consumer: consumer.run_recovery(
            handler=lambda message, tx: handle(message), db_factory=NoTransactions(), interval_ms=50
        )
