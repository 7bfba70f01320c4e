"""dramatiq on Redis: enqueue, then one worker with its usual eight threads drains."""

import json
import os
import sys
import threading
import time

# This file has the name of the package it measures, so its folder must not be on the path.
sys.path.pop(0)

import dramatiq
from dramatiq.brokers.redis import RedisBroker

count = int(sys.argv[1])
broker = RedisBroker(url=os.environ["BENCH_TARGET"])
dramatiq.set_broker(broker)
broker.flush_all()
done = threading.Semaphore(0)


@dramatiq.actor
def nothing(number: int) -> None:
    done.release()


for number in range(count):
    nothing.send(number)
worker = dramatiq.Worker(broker, worker_threads=8)
begin = time.perf_counter()
worker.start()
for _ in range(count):
    done.acquire()
seconds = time.perf_counter() - begin
worker.stop()
print(json.dumps({"peer": "dramatiq", "version": dramatiq.__version__, "jobs": count, "seconds": seconds}))
