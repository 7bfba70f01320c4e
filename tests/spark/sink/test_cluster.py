"""On separate executors: tasks that fail or lose their executor write nothing twice."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import redis

from conquiet.jobs import open_store
from tests.acceptance.fleet import Fleet
from tests.faults.figures import Record
from tests.spark.sink.cluster import BATCH_ROWS, ROWS, Work
from tests.spark.sink.sinking import QUEUE, STREAM, entries


@pytest.mark.campaign
@pytest.mark.timeout(300)
@pytest.mark.clause("P-05", "P-10")
def test_mishaps_of_tasks_change_nothing(
    tmp_path: Path, one_redis: str, postgres_dsn: str, record_figure: Record
) -> None:
    sinks = [{"url": one_redis, "stream": STREAM}, {"dsn": postgres_dsn, "queue": QUEUE}]
    refused = {"dsn": f"sqlite:///{tmp_path}/jobs.db", "queue": QUEUE}
    with redis.Redis.from_url(one_redis) as client:
        client.config_resetstat()
    with Fleet(tmp_path) as fleet:
        cluster = fleet.start(Work("cluster", str(tmp_path), sinks, refused))
        assert cluster.wait(280) == 0, cluster.last_words()
    for sink in ("url", "dsn"):
        assert {path.name for path in (tmp_path / sink).iterdir()} == {"killed", "failed"}
    with redis.Redis.from_url(one_redis) as client, open_store(postgres_dsn) as store:
        found = [
            Counter(json.loads(data)["id"] for data in entries(client)),
            Counter(job.id for job in store.list(limit=10_000)),
        ]
        pushed = client.info("commandstats")["cmdstat_rpush"]["calls"]
        assert pushed > ROWS // BATCH_ROWS  # the failed attempts had staged something
    wanted = Counter(f"job-{n}" for n in range(ROWS))
    record_figure(
        "Spark: tasks that write to a stream and to jobs fail, and lose their executor to kill -9",
        n=2 * len(sinks),  # one killed and one failed in each
        lost=sum((wanted - sink).total() for sink in found),
        doubled=sum((sink - wanted).total() for sink in found),
        rows=2 * ROWS,
        whole=True,
    )
    assert found == [wanted, wanted]
    assert "use it on a local master (local[*]) only" in (tmp_path / "refused").read_text()
