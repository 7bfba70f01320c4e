"""`conquiet verify` as a process, on real servers, with good and bad input."""

from __future__ import annotations

from tests.acceptance.cli.command import Shell


def test_a_good_server_gets_a_readable_verdict(shell: Shell, redis_url: str) -> None:
    done = shell("verify", "--dsn", "sqlite:///jobs.db", "--work", "40", "--kills", "1")
    assert (done.code, done.out) == (0, "all 8 promises are kept\n"), done.err
    assert "ok      a stale worker cannot finish a job: stale ack, nack and heartbeat refused" in done.err
    assert not list(shell.folder.iterdir())
    found = shell("verify", "--dsn", redis_url, "--work", "40", "--kills", "1", "--json").json
    assert found["ok"]
    assert [one["kind"] for one in found["findings"]] == ["kept"] * 5 + ["note"] * 2


def test_what_cannot_be_verified_is_said_in_one_line(shell: Shell) -> None:
    shell.refuses(
        {
            "verify": (2, "--dsn", "CONQUIET_DSN"),
            "verify --dsn mysql://here": (2, "cannot be verified: use postgresql://"),
            "verify --dsn memory://": (2, "memory://"),
            "verify --dsn redis://:hunter2@127.0.0.1:1/0": (3, "cannot be reached"),
            "verify --dsn postgresql://me:hunter2@127.0.0.1:1/x": (3, "cannot be reached"),
            "verify --dsn sqlite:///jobs.db --work 1": (2, "--work"),
        }
    )
