"""Runs all checks that apply to a DSN, in a scratch space on its server."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from conquiet.verify.findings import Extent, Finding, Verdict, examined
from conquiet.verify.job_cancellations import job_cancellations
from conquiet.verify.job_faults import job_faults
from conquiet.verify.jobs import job_checks, open_for_checks
from conquiet.verify.scratch_space import store_scratch, stream_scratch

__all__ = ["verify"]

_AS_MUCH_AS_USUAL = Extent()


def verify(
    dsn: str,
    *,
    work: int = _AS_MUCH_AS_USUAL.work,
    kills: int = _AS_MUCH_AS_USUAL.kills,
    cuts: int = _AS_MUCH_AS_USUAL.cuts,
    signals: int = _AS_MUCH_AS_USUAL.signals,
    cancels: int = _AS_MUCH_AS_USUAL.cancels,
    tell: Callable[[Finding], Any] = lambda finding: None,
) -> Verdict:
    """Test the promises on the server at `dsn`, without faults and with faults of its clients.

    It is a job store (`postgresql://…`, `sqlite:///file.db`) or a Redis server (`redis://…`). Existing data is not
    touched; what the checks create is removed. `work` is the number of jobs or messages per check, `kills` of killed
    processes, `cuts` of cut connections, `signals` of paused and of stopped processes, `cancels` of cancelled asyncio
    calls. `tell` is called with each finding as it is made. Not for a thread with a running event loop.
    """
    extent = Extent(work, kills, cuts, signals, cancels)
    findings: list[Finding] = []
    on = _on_streams if dsn.partition(":")[0] in ("redis", "rediss", "unix") else _on_jobs
    with (
        TemporaryDirectory(prefix="conquiet-verify-") as folder,
        closing(on(dsn, extent, Path(folder))) as found,
    ):
        for finding in found:
            findings.append(finding)
            tell(finding)
    return Verdict(tuple(findings))


def _on_streams(url: str, extent: Extent, folder: Path) -> Generator[Finding]:
    # Imported here: a job store is verified without redis-py.
    from conquiet.verify.stream_cancellations import stream_cancellations
    from conquiet.verify.stream_faults import stream_faults
    from conquiet.verify.streams import StreamChecks

    with stream_scratch(url) as scratch:
        streams = StreamChecks(scratch, extent.work)
        yield from examined(streams.checks())
        yield from examined(stream_faults(scratch, extent, folder))
        yield from examined(stream_cancellations(scratch, extent, folder))
        yield from streams.notes()


def _on_jobs(dsn: str, extent: Extent, folder: Path) -> Generator[Finding]:
    with store_scratch(dsn) as scratch, open_for_checks(scratch) as store:
        yield from examined(job_checks(store, extent.work))
        if store.capabilities.shared:
            yield from examined(job_faults(store, extent, folder))
            yield from examined(job_cancellations(store, extent, folder))
