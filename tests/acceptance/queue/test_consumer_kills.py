"""Consumers killed -9 while they work: every message is handled, none is lost, and each has one effect."""

from __future__ import annotations

from pathlib import Path

import pytest

from conquiet.embedded import RedisServer
from conquiet.verify.recording.streams import POINTS
from tests.acceptance.queue.kill_campaign import AT_RANDOM, SLOTS, KillCampaign
from tests.campaign import campaign_size
from tests.faults.figures import Record, percentiles
from tests.faults.recovery import double_valid_leases, taken_over_after


@pytest.mark.campaign
@pytest.mark.clause("S-21")
def test_no_message_is_lost_however_often_consumers_are_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], record_figure: Record
) -> None:
    messages, kills = campaign_size(20_000), campaign_size(500)
    with RedisServer() as server:
        outcome = KillCampaign(server.url, tmp_path, messages=messages, kills=kills).run()
    with capsys.disabled():
        print(f"\n{outcome}")
    late = [milliseconds / 1000 for milliseconds in taken_over_after(tmp_path / "history")]
    record_figure(
        "Redis: consumers killed -9, at every point and at random",
        n=outcome.kills,
        lost=outcome.lost,
        doubled=len(outcome.numbers) - len(set(outcome.numbers)),
        killed_at=dict(outcome.points),
        messages=messages,
        double_valid_leases=double_valid_leases(outcome.verdict),
        taken_over_after_idle=percentiles(late),
    )
    outcome.verdict.raise_if_broken()
    assert outcome.numbers == list(range(messages))  # every one, exactly once
    assert outcome.pending == 0
    assert outcome.verdict.counts.enqueued == messages
    assert outcome.kills == kills
    assert set(outcome.points) == {*POINTS, AT_RANDOM}
    assert set(outcome.kinds) == {*SLOTS}


def test_the_campaign_notices_a_consumer_that_loses_messages(tmp_path: Path) -> None:
    """A kill loses a message only between its ack and its commit. Not every campaign of three kills hits that place."""
    for number in range(6):
        folder = tmp_path / str(number)
        folder.mkdir()
        with RedisServer() as server:
            campaign = KillCampaign(server.url, folder, messages=30, kills=3, delivery="AcksBeforeCommit")
            outcome = campaign.run()
        if outcome.lost:
            break
    assert outcome.lost > 0
    assert outcome.verdict.kinds == {"lost", "unhandled-ack"}
