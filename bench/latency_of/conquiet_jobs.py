"""conquiet: a job store of its own for the producer, the worker with threads."""

import threading

from common import PLACES, TARGET, produce, role, started, work

from conquiet import Conquiet

app = Conquiet(TARGET)


@app.task
def note(sent: int) -> None:
    started(sent)


with app:
    if role("worker"):
        threading.Thread(target=app.worker(concurrency=PLACES).run, daemon=True).start()
        work()
    produce(note.enqueue)
