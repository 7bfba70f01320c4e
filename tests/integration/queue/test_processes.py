"""Consumers as processes: killed, forked, and identified by name."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from conquiet.embedded import RedisServer
from tests.faults.figures import Record
from tests.integration.queue.processes import Program, run_program
from tests.integration.queue.stream import Stream

LONG = "60000"


@pytest.mark.clause("S-21", "S-24", "C-08")
@pytest.mark.parametrize("how", ["run", "iter_messages"])
def test_a_consumer_killed_before_its_ack_loses_nothing(
    queues: Any, redis_url: str, stream: Stream, how: str
) -> None:
    ids = stream.add('{"wait": true}', '{"n": 2}')
    with Program("consume", queues.name, redis_url, how, LONG) as program:
        assert program.next_line() == f"handling {ids[0]}"
        program.send(signal.SIGKILL)
        assert program.end()[0] == -signal.SIGKILL
    (holder,) = stream.pending().values()
    assert holder.startswith(f"{os.uname().nodename}-{program.pid}-")
    bob = queues.queue("bob")
    assert bob.claim_stale(60_000) == []  # not idle for long enough
    (dead,) = [row for row in stream.raw.xinfo_consumers(stream.key, stream.group) if row["name"] == holder]
    assert dead["pending"] == 1
    stream.raw.xclaim(stream.key, stream.group, holder, 0, ids[:1], idle=60_000, justid=True)
    (again,) = bob.claim_stale(60_000)
    assert (again.id, again.payload) == (ids[0], {"wait": True})
    assert stream.deliveries() == {ids[0]: 2}
    rest = bob.read(1000, 10)
    assert [m.id for m in rest] == ids[1:]
    assert bob.ack_many([again, *rest]) == 2


@pytest.mark.campaign
@pytest.mark.clause("S-24")
def test_inherited_objects_refuse_and_the_parents_go_on(
    variant: str, redis_url: str, redis_server: RedisServer, stream: Stream, record_figure: Record
) -> None:
    lines: list[Any] = run_program("fork", variant, redis_url)
    queue_said, consumer_said, names, parent_read = lines
    for said, what in ((queue_said, "queue refused: enqueue"), (consumer_said, "consumer refused: read")):
        assert said.startswith(what)
        assert "inherited by its fork" in said
        assert said.endswith("make a new one after the fork")
    assert names == "names differ"
    assert parent_read == "parent read [{'before': 'fork'}, {'by': 'a new object'}, {'after': 'fork'}]"
    arrived = len(stream.entries())
    record_figure(
        f"{redis_server.flavour}: fork after connect, the child uses the parent's queue and consumer ({variant})",
        n=2,
        lost=max(0, 3 - arrived),
        doubled=max(0, arrived - 3),
        the_child="is refused",
        whole=True,
    )
    assert arrived == 3  # and none from the inherited object
