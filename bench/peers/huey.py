"""huey on SQLite: enqueue, then dequeue and execute until the queue is empty, as its worker does.

By default with its own settings, which leave syncing to the SQLite library; with the argument `fsync` it must sync every
commit, as conquiet does.
"""

import json
import os
import sys
import time
from importlib.metadata import version

# This file has the name of the package it measures, so its folder must not be on the path.
sys.path.pop(0)

from huey import SqliteHuey

count = int(sys.argv[1])
settings = {"fsync": True} if "fsync" in sys.argv[2:] else {}
huey = SqliteHuey(filename=os.environ["BENCH_TARGET"], **settings)
done = 0


@huey.task()
def nothing(number: int) -> None:
    global done
    done += 1


for number in range(count):
    nothing(number)
begin = time.perf_counter()
while (task := huey.dequeue()) is not None:
    huey.execute(task)
seconds = time.perf_counter() - begin
assert done == count, f"{done} of {count} jobs ran"
print(json.dumps({"peer": "huey", "version": version("huey"), "jobs": count, "seconds": seconds}))
