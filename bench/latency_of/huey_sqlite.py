"""huey on SQLite, its consumer with threads and its own intervals of polling."""

from common import PLACES, TARGET, produce, role, started, work
from huey import SqliteHuey

huey = SqliteHuey(filename=TARGET)


@huey.task()
def note(sent: int) -> None:
    started(sent)


if role("worker"):
    huey.create_consumer(workers=PLACES, periodic=False).start()
    work()
produce(note)
