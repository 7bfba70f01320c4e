"""The shared state behind Sentinels and in a cluster: the same answers, and after a failover the new master's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import redis.asyncio

from conquiet.coordination import SharedBreaker, SharedPace, SharedRateLimiter, SharedState
from conquiet.embedded import RedisServer
from conquiet.errors import QueueConfigError
from conquiet.local import BreakerState
from conquiet.reconcile import (
    DEFAULT_RULES,
    IntakeRules,
    PlatformFetcher,
    ReconciliationService,
    SimulatedAdapter,
)
from conquiet.reconcile.intake.rate_limit import RateLimiter
from conquiet.testing import ManualClock
from tests.addresses import Address, at_port
from tests.integration.coordination.member import members
from tests.integration.coordination.test_outage import away, lines
from tests.integration.reconcile.test_intake import Client
from tests.topologies import ClusterOfServers, Member, Replicated, eventually

KEY = "conquiet:breaker:clips"
KEY_IN_CLUSTER = "{conquiet}:breaker:clips"


class Service(NamedTuple):
    url: str
    key: str  # of the breaker clips
    master: Member  # of this key
    promoted: Callable[[], Member]
    demote: Callable[[], Member]
    all_members: list[Member]


@pytest.fixture(params=["sentinel", "cluster"])
def service(request: pytest.FixtureRequest, redis_server: RedisServer) -> Iterator[Service]:
    with ExitStack() as stack:
        if request.param == "sentinel":
            replicated = stack.enter_context(Replicated(redis_server.binary))
            yield Service(
                replicated.url,
                KEY,
                replicated.master,
                replicated.promoted,
                replicated.demote,
                [replicated.master, *replicated.replicas, *replicated.sentinels],
            )
        else:
            cluster = stack.enter_context(ClusterOfServers(redis_server.binary, replicas=True))
            old, new = cluster.owner(KEY_IN_CLUSTER)
            assert new is not None

            def is_promoted() -> Member:
                for one in (*cluster.masters, *cluster.replicas):
                    if one is not old:
                        eventually(lambda: one.knows_as_master(new), "the others know it")  # noqa: B023
                return new

            def demote() -> Member:
                new.raw.execute_command("CLUSTER", "FAILOVER")
                eventually(lambda: old.follows_port == new.port, "the old master follows")
                return new

            members = [*cluster.masters, *cluster.replicas]
            yield Service(cluster.url, KEY_IN_CLUSTER, old, is_promoted, demote, members)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def opened(clock: ManualClock) -> Iterator[Callable[..., SharedState]]:
    made: list[SharedState] = []

    def open_state(url: str, timeout_seconds: float = 60.0) -> SharedState:
        made.append(SharedState(url, clock=clock, timeout_seconds=timeout_seconds, copy_seconds=0))
        return made[-1]

    yield open_state
    for state in made:
        state.close()


def returns(state: SharedState, clock: ManualClock) -> None:
    """Nothing but calls that write, and the second between two tries."""

    def call() -> bool:
        clock.advance(1.0)
        SharedPace(state).asked("any", 1.0)
        return not state.is_away

    eventually(call, "the shared state is back")


@pytest.mark.clause("W-31", "W-32", "W-34")
def test_processes_share_everything(
    service: Service, clock: ManualClock, opened: Callable[..., SharedState]
) -> None:
    here, there = opened(service.url), opened(service.url)
    for number in range(6):
        name = f"clips-{number}"
        for state in (here, there, here, there, here):
            breaker = SharedBreaker(state, name=name)
            assert breaker.allow()
            breaker.record_failure()
        assert SharedBreaker(there, name=name).state is BreakerState.OPEN
        assert SharedPace(here).asked(name, 10.0) == 10.0
        assert SharedPace(there).wait_for(name) == 10.0
        rules = IntakeRules(per_minute=60, burst=2)
        limiters = [
            SharedRateLimiter(state, RateLimiter(rules, clock), per_minute=60, burst=2)
            for state in (here, there)
        ]
        assert [one.wait_for(name) for one in (*limiters, limiters[0])] == [0.0, 0.0, 1.0]
    assert not here.is_away
    assert not there.is_away
    with members(2, service.url) as together:
        for member in together:
            member.send("rate", "ann", 15)
        assert sum(member.receive() for member in together) == 20


@pytest.mark.clause("W-31", "W-34")
def test_a_killed_master_is_decided_without_and_its_replica_is_found(
    service: Service,
    clock: ManualClock,
    opened: Callable[..., SharedState],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "conquiet.coordination")
    state = opened(service.url)
    breaker = SharedBreaker(state, failure_threshold=2, name="clips")
    breaker.record_failure()
    service.master.kill()
    clock.advance(1.0)
    assert breaker.allow()
    breaker.record_failure()
    assert breaker.state is BreakerState.CLOSED  # its own has seen one failure
    breaker.record_failure()
    assert not breaker.allow()
    assert state.is_away
    assert away() == 1.0
    new = service.promoted()
    returns(state, clock)
    for _ in range(2):
        breaker.record_failure()
    assert SharedBreaker(opened(service.url), failure_threshold=2, name="clips").state is BreakerState.OPEN
    assert new.raw.exists(service.key)
    said = lines(caplog)
    assert [level for level, _ in said] == ["WARNING", "INFO"]
    assert "decides by itself" in said[0][1]
    assert "od:d" not in caplog.text
    assert away() == 0.0


@pytest.mark.clause("W-31")
def test_after_a_planned_failover_the_new_master_is_found(
    service: Service, clock: ManualClock, opened: Callable[..., SharedState]
) -> None:
    """The old master lives on as a replica, and keeps its connections."""
    state = opened(service.url)
    breaker = SharedBreaker(state, failure_threshold=2, name="clips")
    breaker.record_failure()
    new = service.demote()
    returns(state, clock)
    for _ in range(2):
        breaker.record_failure()
    assert new.raw.exists(service.key)
    assert SharedBreaker(opened(service.url), failure_threshold=2, name="clips").state is BreakerState.OPEN


@pytest.mark.clause("W-31")
def test_a_process_may_start_before_the_servers(
    service: Service,
    clock: ManualClock,
    opened: Callable[..., SharedState],
    caplog: pytest.LogCaptureFixture,
) -> None:
    for member in service.all_members:
        member.pause()
    try:
        state = opened(service.url, timeout_seconds=0.05)
        breaker = SharedBreaker(state, failure_threshold=1, name="clips")
        breaker.record_failure()
        assert not breaker.allow()
        assert state.is_away
        assert state.outages == 1
    finally:
        for member in service.all_members:
            member.resume()
    assert [level for level, _ in lines(caplog)] == ["WARNING"]
    returns(state, clock)


@pytest.mark.clause("W-31")
def test_in_a_cluster_it_is_there_or_away_as_a_whole(
    private_cluster: ClusterOfServers, opened: Callable[..., SharedState]
) -> None:
    """With keys on all nodes, one that is away would make every process change its mind with each call."""
    owner, _ = private_cluster.owner(KEY_IN_CLUSTER)
    state = opened(private_cluster.url)
    SharedPace(state).asked("any", 1.0)
    for master in private_cluster.masters:
        if master is not owner:
            master.kill()
    for number in range(30):
        assert SharedBreaker(state, name=f"clips-{number}").state is BreakerState.CLOSED
        SharedPace(state).asked(f"clips-{number}", 1.0)
    assert state.outages == 0
    assert owner.raw.exists("{conquiet}:pace:clips-29")


@pytest.mark.clause("W-31")
def test_an_address_that_is_moved_leads_to_the_new_master(
    redis_server: RedisServer, clock: ManualClock, opened: Callable[..., SharedState]
) -> None:
    """A plain URL: every connection that is kept still leads to the old master, which refuses to write."""
    with Member(redis_server.binary) as old, Member(redis_server.binary) as new, Address(old.port) as address:
        state = opened(at_port(old.url, address.port))
        breaker = SharedBreaker(state, name="clips")
        breaker.record_failure()
        old.raw.execute_command("REPLICAOF", "127.0.0.1", new.port)
        address.move_to(new)
        breaker.record_failure()
        assert state.is_away
        returns(state, clock)
        breaker.record_failure()
        assert new.raw.exists(KEY)
        state.close()


def test_what_is_no_server_is_refused() -> None:
    for url in ("", "redis+cluster://localhost:x", "redis+sentinel://localhost:26379"):
        with pytest.raises(QueueConfigError, match="is not a usable Redis URL"):
            SharedState(url)
    for wrong in (None, redis.asyncio.Redis()):
        with pytest.raises(QueueConfigError, match="server must be a Redis URL or a synchronous client"):
            SharedState(wrong)  # type: ignore[arg-type]


@pytest.mark.clause("W-32", "W-34")
def test_the_reconciliation_takes_such_a_url(
    service: Service, clock: ManualClock, opened: Callable[..., SharedState], tmp_path: Path
) -> None:
    rules = replace(DEFAULT_RULES, intake=IntakeRules(burst=2))
    with ExitStack() as stack:
        clients = []
        for _ in range(2):
            fetcher = PlatformFetcher({"sim": SimulatedAdapter(clock=clock)}, clock=clock)
            reconciling = ReconciliationService(
                f"sqlite:///{tmp_path}/reports.db",
                fetcher,
                rules=rules,
                shared=opened(service.url),
                clock=clock,
            )
            stack.callback(reconciling.stop)
            clients.append(Client(reconciling.app))
        answers = [client.post(platform="sim").status_code for client in (*clients, *clients)]
        assert answers == [202, 202, 429, 429]
