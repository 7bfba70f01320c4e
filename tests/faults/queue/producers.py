"""Producers that enqueue through a failover, and count what they were promised."""

from __future__ import annotations

import json
import threading
import time
from itertools import count, pairwise

from redis import Redis

from conquiet.queue import (
    QueueConfig,
    QueueConnectionError,
    QueueRefusedError,
    RedisStreamsQueue,
    UnreplicatedEnqueueError,
    connect,
)
from tests.topologies import Member

CONFIG = QueueConfig("failover", "group", "looks")


class Producers:
    """Two threads that enqueue without a pause, through failures, each on one client for the whole time.

    Entries are told apart by a number: two masters may give the same id.
    """

    def __init__(self, url: str, min_replicas: int) -> None:
        self.acknowledged: list[int] = []
        self.unconfirmed: list[int] = []
        self.after: list[float] = []  # when each thread's first enqueue on the new master returned
        self.struck = 0.0
        self._numbers = count()
        self._over = threading.Event()
        self._threads = []
        for client in (connect(url), connect(url)):
            queue = RedisStreamsQueue(client, CONFIG, min_replicas=min_replicas, replicas_timeout_ms=1_000)
            self._threads.append(threading.Thread(target=self._produce, args=(client, queue)))
        for thread in self._threads:
            thread.start()

    def _produce(self, client: Redis, queue: RedisStreamsQueue) -> None:
        with client:
            failed = False
            while not self._over.is_set():
                number = next(self._numbers)
                try:
                    queue.enqueue({"n": number})
                    self.acknowledged.append(number)
                    if failed:
                        self.after.append(time.monotonic())
                        return
                except UnreplicatedEnqueueError:
                    if failed:  # it is on the new master, which has no replica yet
                        self.after.append(time.monotonic())
                        return
                    self.unconfirmed.append(number)
                    failed = bool(self.struck)
                except QueueConnectionError:
                    failed = True
                    time.sleep(0.02)

    def join(self) -> None:
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


class PatientProducers(Producers):
    """They go on until an enqueue that began after the failover was acknowledged: both masters may take some meanwhile."""

    def __init__(self, url: str, min_replicas: int) -> None:
        self.finished = threading.Event()  # set when the old master takes no more
        self.pauses: list[float] = []  # each thread's longest time between two acknowledged enqueues
        super().__init__(url, min_replicas)

    def _produce(self, client: Redis, queue: RedisStreamsQueue) -> None:
        with client:
            moments = [time.monotonic()]
            while not self._over.is_set():
                last, number = self.finished.is_set(), next(self._numbers)
                try:
                    queue.enqueue({"n": number})
                    self.acknowledged.append(number)
                    moments.append(time.monotonic())
                    if last:
                        break
                except UnreplicatedEnqueueError:
                    self.unconfirmed.append(number)
                except (QueueConnectionError, QueueRefusedError):
                    time.sleep(0.02)
            self.pauses.append(max((later - one for one, later in pairwise(moments)), default=0.0))


def stored(master: Member) -> set[int]:
    """The numbers of the entries that a server has."""
    return {json.loads(fields["data"])["n"] for _, fields in master.raw.xrange(CONFIG.stream_key)}
