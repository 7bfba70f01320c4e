"""All checks that fit a DSN, in a corner of its server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conquiet.errors import QueueConnectionError, redact
from conquiet.queue import connect
from conquiet.testing.verification.corner import store_corner
from conquiet.testing.verification.findings import Finding, Verdict, examined
from conquiet.testing.verification.jobs import job_checks, open_for_checks
from conquiet.testing.verification.streams import StreamChecks

__all__ = ["verify"]


def verify(
    dsn: str, *, work: int = 500, kills: int = 10, tell: Callable[[Finding], Any] = lambda finding: None
) -> Verdict:
    """Put the promises to the test on the server at `dsn`, with `work` jobs or messages and `kills` killed processes.

    A job store (`postgresql://…`, `sqlite:///file.db`) or a Redis server (`redis://…`). What is there is not touched;
    what the checks make is removed. `tell` is called with each finding as it comes.
    """
    findings: list[Finding] = []

    def found(finding: Finding) -> None:
        findings.append(finding)
        tell(finding)

    if dsn.partition(":")[0] in ("redis", "rediss", "unix"):
        with connect(dsn) as redis:
            _ping(redis)
            streams = StreamChecks(redis, dsn, work, kills)
            try:
                for finding in (*examined(streams.checks()), *streams.notes()):
                    found(finding)
            finally:
                streams.clear()
    else:
        with store_corner(dsn) as corner, open_for_checks(corner) as store:
            for finding in examined(job_checks(store, work, kills)):
                found(finding)
    return Verdict(tuple(findings))


def _ping(redis: Any) -> None:
    from redis.exceptions import RedisError

    try:
        redis.ping()
    except RedisError as error:
        raise QueueConnectionError(f"the server cannot be reached: {redact(str(error))}") from error
