"""procrastinate on PostgreSQL, its worker with LISTEN."""

import asyncio
import logging

import procrastinate
from common import PLACES, TARGET, produce, role, started, work_beside

logging.getLogger("procrastinate").setLevel(logging.ERROR)  # it warns about an App in the main module


async def worker() -> None:
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=TARGET))

    @app.task(name="note")
    async def note(sent: int) -> None:
        started(sent)

    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        work_beside()
        await app.run_worker_async(concurrency=PLACES, install_signal_handlers=False)


if role("worker"):
    asyncio.run(worker())
app = procrastinate.App(connector=procrastinate.SyncPsycopgConnector(conninfo=TARGET))
with app.open():
    task = app.configure_task("note", allow_unknown=True)
    produce(lambda sent: task.defer(sent=sent))
