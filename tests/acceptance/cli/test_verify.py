"""`conquiet verify` as a process, on good and bad servers, with good and bad input."""

from __future__ import annotations

import re
from pathlib import Path

from conquiet.embedded import RedisServer
from conquiet.verify.findings import Extent
from conquiet.verify.job_cancellations import job_cancellations
from conquiet.verify.job_faults import job_faults
from conquiet.verify.jobs import job_checks, open_for_checks
from conquiet.verify.scratch_space import store_scratch
from tests.acceptance.cli.command import Shell
from tests.integration.verify.liar import Liar

FEW = ("--work", "40", "--kills", "1", "--cuts", "2", "--signals", "1", "--cancels", "5")
NO_FAULTS = ("--kills", "0", "--cuts", "0", "--signals", "0", "--cancels", "0")


def test_a_good_store_gets_a_readable_verdict(shell: Shell) -> None:
    done = shell("verify", "--dsn", "sqlite:///jobs.db", *FEW)
    assert (done.code, done.out) == (0, "all 11 promises are kept\n"), done.err
    lines = done.err.splitlines()
    assert len(lines) == 11, done.err  # one per promise, and no log of the faults made on purpose
    assert lines[2].startswith(
        "ok       a stale worker cannot finish a job: stale ack, nack and heartbeat refused ("
    )
    assert re.search(
        r"1 pauses, 1 taken over, [1-9] stale settles refused; 95 % bound 3/1: too few to tell", done.err
    )
    assert not list(shell.folder.iterdir())


def test_a_good_redis_gets_a_verdict_for_programs(shell: Shell, redis_url: str) -> None:
    found = shell("verify", "--dsn", redis_url, "--work", "10", *NO_FAULTS, "--cuts", "2", "--json").json
    assert found["ok"]
    kinds = [one["kind"] for one in found["findings"]]
    assert kinds == [*["kept"] * 4, "skipped", "kept", *["skipped"] * 3, *["note"] * 2]


def test_a_server_that_forgets_acknowledgements_is_broken(shell: Shell, redis_server: RedisServer) -> None:
    with Liar(redis_server, "XACK") as liar:
        done = shell("verify", "--dsn", liar.url, "--work", "10", *NO_FAULTS)
    assert (done.code, done.out) == (1, "1 of 4 promises are BROKEN, 5 skipped\n"), done.err
    assert (
        "BROKEN   what is enqueued comes back unchanged: acknowledged messages are still pending" in done.err
    )
    assert "skipped  consumers killed -9: nothing lost: kills=0 was requested\n" in done.err


def test_the_sample_in_the_documentation_has_the_checks_that_there_are(
    postgres_dsn: str, tmp_path: Path
) -> None:
    page = (Path(__file__).parents[3] / "docs" / "operations.md").read_text(encoding="utf-8")
    sample = page.partition("$ conquiet verify")[2].partition("```")[0]
    extent = Extent()
    with store_scratch(postgres_dsn) as corner, open_for_checks(corner) as store:
        checks = [
            *job_checks(store, extent.work),
            *job_faults(store, extent, tmp_path),
            *job_cancellations(store, extent, tmp_path),
        ]
    lines = [line for line in sample.splitlines() if line.startswith("ok ")]
    assert len(lines) == len(checks)
    for line, check in zip(lines, checks, strict=True):
        assert line.startswith(f"ok       {check.name}: ")
    assert sample.endswith(f"all {len(checks)} promises are kept\n")


def test_what_cannot_be_verified_is_said_in_one_line(shell: Shell) -> None:
    shell.refuses(
        {
            "verify": (2, "--dsn", "CONQUIET_DSN"),
            "verify --dsn mysql://here": (2, "cannot be verified: use postgresql://"),
            "verify --dsn memory://": (2, "memory://"),
            "verify --dsn redis://:hunter2@127.0.0.1:1/0": (3, "cannot be reached"),
            "verify --dsn postgresql://me:hunter2@127.0.0.1:1/x": (3, "cannot be reached"),
            "verify --dsn sqlite:///jobs.db --work 1": (2, "--work"),
            "verify --dsn sqlite:///jobs.db --cuts -1": (2, "--cuts"),
            "verify --dsn sqlite:///nowhere/jobs.db": (3, "unable to open database file"),
        }
    )
