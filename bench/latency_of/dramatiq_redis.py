"""dramatiq on Redis, its worker with threads."""

import dramatiq
from common import PLACES, TARGET, produce, role, started, work
from dramatiq.brokers.redis import RedisBroker

broker = RedisBroker(url=TARGET)
dramatiq.set_broker(broker)


@dramatiq.actor
def note(sent: int) -> None:
    started(sent)


if role("worker"):
    dramatiq.Worker(broker, worker_threads=PLACES).start()
    work()
produce(note.send)
