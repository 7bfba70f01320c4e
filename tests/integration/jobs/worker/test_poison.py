"""A job that kills its worker costs nobody but itself."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from conquiet.jobs import JobState, JobStore, open_store
from tests.integration.jobs.handlers import words
from tests.integration.jobs.processes import Program

EXPIRIES = 4
SETTINGS: list[dict[str, Any]] = [{}, {"concurrency": 2, "prefetch": 20}]


@pytest.mark.clause("J-22", "J-28")
@pytest.mark.parametrize("settings", SETTINGS, ids=["default", "prefetch"])
@pytest.mark.parametrize("place", [0, 12])
def test_one_poison_job_among_honest_ones(
    durable_dsn: str, tmp_path: Path, settings: dict[str, Any], place: int
) -> None:
    """The honest ones all succeed. Only those are charged that ran beside it, and only once: from then on it runs alone."""
    with open_store(durable_dsn, max_lease_expiries=EXPIRIES) as store:
        payloads = [{"notes": str(tmp_path / str(n)), "dies": n == place} for n in range(41)]
        ids = store.enqueue_many("q", payloads)
        deaths = _work_until_done(store, durable_dsn, settings)
        jobs = [store.get(job_id) for job_id in ids]
        bad = jobs.pop(place)
        assert (bad.state, bad.lease_expiries, deaths) == (JobState.FAILED, EXPIRIES, EXPIRIES)
        assert words(tmp_path / str(place)) == ["begin"] * EXPIRIES
        unsaid = 0  # charged, because it was recorded that they begin; killed before their first line
        for job in jobs:
            begins = words(Path(job.payload["notes"])).count("begin")
            assert job.state is JobState.SUCCEEDED
            assert job.lease_expiries <= 1
            assert begins <= 2
            unsaid += job.lease_expiries > begins - 1
        assert unsaid < settings.get("concurrency", 8)  # the poison job had a place, too


def _work_until_done(store: JobStore, dsn: str, settings: dict[str, Any]) -> int:
    """Run a worker, and another one whenever it dies, as a supervisor does. Return how many died."""
    work = {
        "handler": "poison",
        "lease_ttl": 1.0,
        "max_lease_expiries": EXPIRIES,
        "until_idle": True,
        **settings,
    }
    for deaths in range(3 * EXPIRIES):
        with Program("work", dsn=dsn, **work) as program:
            code, _, said = program.end(60.0)
        if code != -signal.SIGKILL:
            assert code == 0, said
            return deaths
    raise AssertionError(f"still not done after {deaths} deaths: {store.stats()}")
