"""pgqueuer on PostgreSQL, with LISTEN."""

import asyncio

import asyncpg
from common import TARGET, produce, role, started, work_beside
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries


async def worker() -> None:
    driver = AsyncpgDriver(await asyncpg.connect(TARGET))
    await Queries(driver).install()
    pgq = PgQueuer(driver)

    @pgq.entrypoint("note")
    async def note(job: Job) -> None:
        started(int(job.payload or b"0"))

    work_beside()
    await pgq.run()


if role("worker"):
    asyncio.run(worker())
with asyncio.Runner() as runner:
    queries = Queries(AsyncpgDriver(runner.run(asyncpg.connect(TARGET))))
    produce(lambda sent: runner.run(queries.enqueue("note", str(sent).encode())))
