"""A worker whose machine is gone must not keep its rows locked for as long as TCP allows by default."""

from __future__ import annotations

from typing import Any

from conquiet.jobs import Job, JobWorker, open_store


def test_the_server_looks_after_its_clients(postgres_dsn: str) -> None:
    found: list[str] = []

    def look(job: Job, context: Any) -> None:
        names = ("idle", "interval", "count")
        found.extend(
            context.connection.execute(f"SHOW tcp_keepalives_{name}").fetchone()[0] for name in names
        )

    with open_store(postgres_dsn) as store:
        store.enqueue("look", {})
        JobWorker(store, look, queues="look").run_until_idle()
    assert found == ["10", "5", "3"]
