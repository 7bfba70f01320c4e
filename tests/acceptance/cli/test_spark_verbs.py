"""reconcile and pipeline: small runs on Spark, and errors raised before Spark starts."""

from __future__ import annotations

import json
import re
import signal
import sqlite3
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from conquiet.embedded import RedisServer
from conquiet.jobs import open_store
from conquiet.queue import QueueConfig, RedisStreamsQueue, connect
from tests.acceptance.cli.command import Done, Shell

pytestmark = pytest.mark.timeout(600)  # on a busy machine Spark takes a minute to start

STREAM = "reconcile stream reports --group spark --metrics sample/metrics.parquet --out streamed"
STREAM += " --retry-queue reconciliation --json"


class Runs(NamedTuple):
    shell: Shell
    truth: dict[str, Any]
    url: str
    lines: list[str]
    done: dict[str, Done]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """Every verb on Spark, one after the other in one process, so that Spark starts once."""
    shell = Shell(tmp_path_factory.mktemp("spark"))
    generated = shell("pipeline", "generate", "--reports", "200", "--out", "sample", "--json")
    lines = (shell.folder / "sample" / "reports.jsonl").read_text().splitlines()
    (shell.folder / "empty").mkdir()
    files = "--reports sample/reports.jsonl --metrics sample/metrics.parquet"
    commands = {
        "batch": f"reconcile batch {files} --out judged --json",
        "tables": f"reconcile batch {files} --database --dsn sqlite:///judged.db",
        "page": "pipeline report --tables judged --title 'A <small> sample' --jobs",
        "nothing": "pipeline report --tables empty",
        "wrong": "reconcile batch --reports sample/metrics.parquet --metrics sample/metrics.parquet --out wrong",
        "stream": f"{STREAM} --once",
        "pipeline": "pipeline run --reports 200 --out out --json",
    }
    with RedisServer() as server, connect(server.url) as client:
        shell.environment |= {"REDIS_URL": server.url, "DATABASE_URL": f"sqlite:///{shell.folder}/jobs.db"}
        open_store(shell.environment["DATABASE_URL"]).close()
        RedisStreamsQueue(client, QueueConfig("reports", "spark", "producer"))
        for line in lines[: len(lines) // 2]:
            client.xadd("reports", {"data": line})
        done = dict(zip(commands, shell.each(*commands.values(), timeout=550), strict=True))
        yield Runs(shell, generated.json["truth"], server.url, lines, done)


def test_a_sample_is_generated_with_its_truth(runs: Runs) -> None:
    assert (
        len(runs.lines)
        == runs.truth["entries"]
        == sum(runs.truth["quarantine"].values()) + 200 + runs.truth["duplicates"]
    )


def test_files_are_judged_into_a_folder_or_a_database(runs: Runs) -> None:
    judged = runs.done["batch"].json
    assert judged["verdicts"] == runs.truth["first"]
    assert judged["rows"]["quarantine"] == sum(runs.truth["quarantine"].values())
    assert runs.done["tables"].code == 0, runs.done["tables"].err
    database = sqlite3.connect(runs.shell.folder / "judged.db")
    statuses = database.execute("SELECT status, count(*) FROM conquiet_verdicts GROUP BY 1").fetchall()
    database.close()
    assert dict(statuses) == runs.truth["first"]
    again = "reconcile batch --reports sample/reports.jsonl --metrics sample/metrics.parquet --out judged"
    runs.shell.refuses({again: (2, "tables in judged", "--append")})


def test_what_was_found_is_drawn(runs: Runs) -> None:
    assert runs.done["page"].code == 0, runs.done["page"].err
    assert "A &lt;small&gt; sample" in (runs.shell.folder / "judged" / "report.html").read_text()


def test_what_only_spark_finds_out_is_one_line_at_the_end(runs: Runs) -> None:
    for name, complaint in (("nothing", "there is no table verdicts in empty"), ("wrong", "report_id")):
        done = runs.done[name]
        assert done.code == 2, done.err
        assert done.err.splitlines()[-1].startswith("conquiet: ")
        assert complaint in done.err.splitlines()[-1]
        assert "Traceback" not in done.err


def test_a_stream_is_judged_goes_on_where_it_was_and_stops_at_sigterm(runs: Runs) -> None:
    first = runs.done["stream"].json
    assert 0 < sum(first["verdicts"].values()) < 200
    with connect(runs.url) as client:
        for line in runs.lines[len(runs.lines) // 2 :]:
            client.xadd("reports", {"data": line})
        with runs.shell.start(*STREAM.split()) as process:
            assert process.stderr is not None
            for line in process.stderr:  # wait until it works before stopping it
                # The first run may have ended with a batch without rows.
                if re.search(r" batch \d+: [1-9]", line):
                    break
            queue = RedisStreamsQueue(client, QueueConfig("reports", "spark", "me"))
            deadline = time.monotonic() + 200
            while queue.backlog_stats().pending:  # a batch is acknowledged when the next one begins
                assert time.monotonic() < deadline
                assert process.poll() is None
                time.sleep(0.1)
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=500)
            assert process.returncode == 0, err
    assert json.loads(out)["verdicts"] == runs.truth["first"]
    with open_store(runs.shell.environment["DATABASE_URL"]) as store:
        assert store.stats()["reconciliation"].delayed == json.loads(out)["rows"]["retries"] > 0


def test_the_whole_pipeline_runs_and_is_right(runs: Runs) -> None:
    done = runs.done["pipeline"]
    assert done.json == {"right": True, "reports": 200, "out": "out"}
    assert "right:" in done.err  # progress goes to standard error


def test_what_cannot_be_meant_is_refused_before_spark_starts(shell: Shell, redis_url: str) -> None:
    (shell.folder / "reports.txt").write_text("")
    (shell.folder / "file").write_text("")
    (shell.folder / "m.csv").write_text("")
    batch = "reconcile batch --metrics m.csv --out judged --reports"
    stream = f"reconcile stream reports --redis-url {redis_url} --metrics"
    shell("pipeline", "run", "--reports", "0").refused(2, "--reports")
    shell.refuses(
        {
            "reconcile batch --reports m.csv --out judged": (2, "--metrics"),
            f"{batch} m.csv --database": (2, "--out FOLDER, or --database"),
            "reconcile batch --reports m.csv --metrics m.csv --database": (2, "--dsn", "DATABASE_URL"),
            f"{batch} nowhere.jsonl": (2, "no file or folder nowhere.jsonl", "--reports"),
            f"{batch} reports.txt": (2, "--reports-format"),
            f"{batch} m.csv --reports-format xml": (2, "csv, json, parquet", "'xml'"),
            f"{batch} m.csv --as-of yesterday": (2, "--as-of", "2026-01-31T14:00:00+00:00"),
            f"{batch} m.csv --as-of 2026-01-31T14:00:00": (2, "with time zone"),
            f"{stream} nowhere.csv --out judged --group spark": (2, "nowhere.csv", "--metrics"),
            f"{stream} m.csv --out judged": (2, "--group", "CONQUIET_GROUP"),
            f"{stream} m.csv --out judged --group spark": (1, "no stream 'reports'"),
            "pipeline generate --reports 1 --out file": (2, "file", "--out"),
            "pipeline report --tables nowhere": (2, "no folder nowhere", "--tables"),
            "pipeline report --tables . --dsn sqlite:///jobs.db": (2, "--jobs"),
            "pipeline report --tables . --page no/such/page.html": (2, "--page"),
        }
    )
