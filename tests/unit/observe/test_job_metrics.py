"""Job metrics: bulk counting equals counting one by one, and labels are bounded."""

from __future__ import annotations

import math
import random
import subprocess
import sys

from prometheus_client import CollectorRegistry, Histogram

from conquiet.observe.job_metrics import JOB_BOUNDS, STEP_BOUNDS, observe_all
from tests.chance import new_chance


def samples(histogram: Histogram) -> list[tuple[str, str, float]]:
    (family,) = histogram.collect()
    return [
        (sample.name, sample.labels.get("le", ""), sample.value)
        for sample in family.samples
        if not sample.name.endswith("_created")
    ]


def test_adding_in_bulk_equals_observing_one_by_one() -> None:
    chance: random.Random = new_chance()
    values = [*JOB_BOUNDS, 0.0, 1e9, *(10 ** chance.uniform(-5, 6) for _ in range(500))]
    one, many = (Histogram("h", "h", buckets=JOB_BOUNDS, registry=CollectorRegistry()) for _ in range(2))
    for value in values:
        one.observe(value)
    observe_all(many, values[:1], JOB_BOUNDS)
    observe_all(many, values[1:], JOB_BOUNDS)
    for (name, le, expected), (its_name, its_le, found) in zip(samples(one), samples(many), strict=True):
        assert (name, le) == (its_name, its_le)
        assert math.isclose(expected, found)


def test_bounds_go_from_a_millisecond_to_hours_in_order() -> None:
    assert JOB_BOUNDS[0] == 0.001
    assert JOB_BOUNDS[-1] >= 4 * 3600
    assert sorted(JOB_BOUNDS) == list(JOB_BOUNDS)
    assert sorted(STEP_BOUNDS) == list(STEP_BOUNDS)


ENDLESS_NAMES = """
from prometheus_client import REGISTRY
from conquiet.observe import count_enqueued, job_series
for n in range(1000):
    count_enqueued("q", f"task {n}", 1)
    job_series("q", f"task {n}").ended("succeeded", 1, [0.1], [0.1], 0)
found = {family.name: family.samples for family in REGISTRY.collect()}
finished = [s for s in found["conquiet_jobs_finished"] if s.name.endswith("_total") and s.value]
enqueued = [s for s in found["conquiet_jobs_enqueued"] if s.name.endswith("_total") and s.value]
assert len(finished) == len(enqueued) == 201, (len(finished), len(enqueued))
assert sum(s.value for s in finished) == sum(s.value for s in enqueued) == 1000
assert [s.value for s in finished if s.labels["task"] == "(other)"] == [800]
"""

WITHOUT_CLIENT = """
import sys
sys.modules["prometheus_client"] = None
from conquiet.jobs import JobWorker, open_store
store = open_store("memory://")
store.enqueue("q", {})
assert JobWorker(store, lambda job: None, queues="q").run_until_idle().succeeded == 1
"""


def run(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_endless_names_do_not_make_endless_series() -> None:
    run(ENDLESS_NAMES)


def test_jobs_run_without_prometheus_client() -> None:
    run(WITHOUT_CLIENT)
