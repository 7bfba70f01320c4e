"""Runs a queue mutant on a real Redis, in the scenario of the acceptance tests that shows its bug."""

from __future__ import annotations

from pathlib import Path

from redis import Redis

from conquiet.queue.flows.delivery import Delivery
from conquiet.verify.history import Violation, check
from tests.acceptance.queue import consumer_stage
from tests.acceptance.queue.consumer_stage import Scenario, Stage

# The scenarios in one process: a mutant changes only the running one.
SCENARIOS: dict[str, Scenario] = {
    scenario.__name__: scenario
    for scenario in (
        consumer_stage.steady,
        consumer_stage.failing_handler,
        consumer_stage.stopped_in_a_read,
        consumer_stage.malformed_batch,
        consumer_stage.slow_handler_beside_recovery,
    )
}


def play_queue(url: str, scenario: str, folder: Path) -> list[Violation]:
    """The violations of the queue; none for the real one."""
    with Redis.from_url(url) as redis:
        redis.flushdb()
    stage = Stage(url, folder, Delivery)
    try:
        SCENARIOS[scenario](stage)
        return check(stage.history.path).violations
    finally:
        stage.close()
