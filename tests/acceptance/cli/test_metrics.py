"""metrics and doctor: their findings on real servers and without any."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from conquiet.embedded import RedisServer
from conquiet.jobs import open_store
from conquiet.queue import QueueConfig, RedisStreamsQueue, connect
from tests.acceptance.cli.command import Shell


@pytest.fixture
def store(tmp_path: Path) -> str:
    dsn = f"sqlite:///{tmp_path}/jobs.db"
    with open_store(dsn) as store:
        store.enqueue_many('a "queue"\n\\', [{"n": n} for n in range(3)])
    return dsn


def values(text: str) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_are_served_and_looked_up_anew(shell: Shell, store: str) -> None:
    with RedisServer() as server, connect(server.url) as client:
        queue = RedisStreamsQueue(client, QueueConfig("orders", "billing", "biller"))
        queue.enqueue_many([{"n": n} for n in range(5)])
        queue.read(100, 2)
        arguments = ("--dsn", store, "--redis-url", server.url, "--stream", "orders", "--port", "0", "--json")
        with shell.start("metrics", *arguments) as process:
            assert process.stdout is not None
            url = json.loads(process.stdout.readline())["url"]
            with urlopen(url) as page:
                first = values(page.read().decode())
            with pytest.raises(HTTPError, match="404"):
                urlopen(url.replace("/metrics", "/other"))
            assert first["conquiet_jobs", 'a "queue"\n\\', "ready"] == 3
            assert first["conquiet_stream_length", "orders"] == 5
            assert first["conquiet_stream_pending", "orders", "billing"] == 2
            assert first["conquiet_stream_lag", "orders", "billing"] == 3
            server.stop()
            with open_store(store) as jobs:
                jobs.enqueue("emails", {})
            with urlopen(url) as page:
                second = values(page.read().decode())
            assert second["conquiet_jobs", "emails", "ready"] == 1
            assert (second["conquiet_source_up", "jobs"], second["conquiet_source_up", "stream orders"]) == (
                1,
                0,
            )
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0


def test_metrics_once_and_what_is_refused(shell: Shell, store: str) -> None:
    once = shell("metrics", "--once", "--dsn", store, "--json").json
    assert (once[0]["name"], once[0]["value"]) == ("conquiet_source_up", 1)
    text, missing = shell.each(f"metrics --once --dsn {store}", "metrics --once --dsn sqlite:///nowhere.db")
    assert values(text.out)["conquiet_jobs", 'a "queue"\n\\', "failed"] == 0
    missing.refused(5, "nowhere.db", "conquiet migrate")
    assert 'conquiet_source_up{source="jobs"} 0' in missing.out
    shell.refuses(
        {
            "metrics": (2, "--dsn", "CONQUIET_DSN"),
            "metrics --stream orders": (2, "--redis-url", "REDIS_URL"),
            "metrics --redis-url redis://127.0.0.1:1": (2, "--stream"),
            f"metrics --dsn {store} --host 256.0.0.1": (2, "cannot listen", "--port"),
        }
    )


def test_doctor_finds_what_is_there(shell: Shell, store: str, postgres_dsn: str) -> None:
    with RedisServer() as server:
        found = shell("doctor", "--dsn", store, "--redis-url", server.url, "--json").json
    checks = {check["name"]: check for check in found["checks"]}
    assert found["ok"] is True
    assert (
        checks["job store (from --dsn)"]["status"]
        == checks["Redis server (from --redis-url)"]["status"]
        == "ok"
    )
    assert checks["redis-server or valkey-server"]["status"] == checks["postgres"]["status"] == "ok"
    assert {"python", "java"} <= set(checks)
    assert any(name.startswith("spark: ") for name in checks)
    empty = shell("doctor", "--dsn", postgres_dsn)
    assert empty.code == 1
    assert "conquiet migrate" in empty.out
    assert "1 to fix" in empty.out


def test_doctor_tells_what_does_not_work_and_how_to_mend_it(shell: Shell, tmp_path: Path) -> None:
    unreachable = {
        "DATABASE_URL": "postgresql://app:hunter2@127.0.0.1:1/shop",
        "REDIS_URL": "redis://:hunter2@127.0.0.1:1",
        "CONQUIET_REDIS_SERVER": str(tmp_path / "nowhere"),
    }
    done = shell("doctor", "--json", **unreachable)
    assert done.code == 1
    wrong = {check["name"]: check for check in json.loads(done.out)["checks"] if check["status"] == "wrong"}
    assert set(wrong) == {
        "redis-server or valkey-server",
        "job store (from DATABASE_URL)",
        "Redis server (from REDIS_URL)",
    }
    assert (
        wrong["job store (from DATABASE_URL)"]["fix"] == "check that the server is running, and DATABASE_URL"
    )
    assert wrong["Redis server (from REDIS_URL)"]["fix"] == "check that the server is running, and REDIS_URL"
    assert "hunter2" not in done.out + done.err
    (tmp_path / "conquiet.toml").write_text("dsn = 3\n")
    broken = shell("doctor")
    assert broken.code == 1
    assert "conquiet.toml: dsn is written as" in broken.out
