"""`conquiet.verify` on unfit servers: lying servers, wrong code, TLS, servers that go away."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest

from conquiet.embedded import PostgresServer, RedisServer
from conquiet.errors import QueueConnectionError, StoreUnavailableError
from conquiet.jobs import JobStore
from conquiet.verify import Finding, Verdict, job_cancellations, verify
from conquiet.verify.findings import Check, Extent, examined
from conquiet.verify.job_faults import job_faults
from conquiet.verify.jobs import job_checks, open_for_checks
from conquiet.verify.processes import kill_until
from conquiet.verify.scratch_space import store_scratch, stream_scratch
from conquiet.verify.stream_faults import stream_faults
from tests.abuse.certificates import Authority
from tests.abuse.test_tls import own_tls_of_postgres
from tests.abuse.tls_front import TlsFront
from tests.addresses import at_port
from tests.integration.verify.liar import Liar
from tests.mutants.catalogue import MUTANTS

NO_FAULTS: dict[str, Any] = {"kills": 0, "cuts": 0, "signals": 0, "cancels": 0}


SKIPPED = " with sslmode=disable, on a network that you trust, the check can run"


def cuts_of(store: JobStore, folder: Path, cuts: int) -> Check:
    (check,) = [one for one in job_faults(store, Extent(cuts=cuts), folder) if "cut" in one.name]
    return check


def finding(verdict: Verdict, about: str) -> Finding:
    (found,) = [one for one in verdict.findings if about in one.name]
    return found


def test_a_server_that_forgets_what_was_acknowledged_is_found_out(redis_server: RedisServer) -> None:
    with Liar(redis_server, "XACK") as liar:
        verdict = verify(liar.url, work=10, **NO_FAULTS)
    assert not verdict.ok
    assert finding(verdict, "comes back unchanged").detail == "acknowledged messages are still pending"


def test_a_server_that_loses_what_was_enqueued_is_found_out_by_its_history(redis_server: RedisServer) -> None:
    with Liar(redis_server, "XADD", nth=7) as liar:
        verdict = verify(liar.url, work=10, **NO_FAULTS | {"cuts": 5, "cancels": 40})
    assert "the history is broken: lost: " in finding(verdict, "connections cut").detail
    assert "the history is broken: lost: " in finding(verdict, "cancelled at every await").detail


def test_an_ack_that_is_committed_before_its_effect_is_found_out(postgres_dsn: str, tmp_path: Path) -> None:
    (wrong,) = [
        m for m in MUTANTS if m.name == "PostgreSQL: the ack is committed before the handler's effect"
    ]
    with store_scratch(postgres_dsn) as corner, open_for_checks(corner) as store, wrong.applied():
        _, cut = examined([job_checks(store, 10)[-1], cuts_of(store, tmp_path, 30)])
    assert cut.kind == "broken", cut


# Code that the worker processes run first: it applies the mutant.
WRONG = """
from tests.mutants.catalogue import MUTANTS
(wrong,) = [m for m in MUTANTS if m.name == {name!r}]
for_good = wrong.applied()
for_good.__enter__()
"""
ANYBODY_ACKNOWLEDGES = """
import conquiet.queue.flows.operations as streams
streams.StreamOperations.ack_if_owner = streams.StreamOperations.ack
"""


@pytest.fixture
def make_workers_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def make(code: str) -> None:
        (tmp_path / "sitecustomize.py").write_text(code)
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).parents[3]}")

    return make


@pytest.mark.parametrize(
    ("name", "about", "said"),
    [
        ("a refused settle is reported as done", "paused", ""),
        (
            "a stopping worker acknowledges jobs that it has not begun",
            "SIGTERM",
            "4 jobs were finished, not the one begun",
        ),
    ],
)
def test_a_wrong_worker_is_found_out(
    tmp_path: Path, make_workers_wrong: Callable[[str], None], name: str, about: str, said: str
) -> None:
    make_workers_wrong(WRONG.format(name=name))
    with open_for_checks(f"sqlite:///{tmp_path}/jobs.db") as store:
        (check,) = [one for one in job_faults(store, Extent(signals=1), tmp_path) if about in one.name]
        _, found = examined([job_checks(store, 10)[-1], check])
    assert found.kind == "broken", found
    assert said in found.detail


@pytest.mark.parametrize(
    ("code", "about", "said"),
    [
        (ANYBODY_ACKNOWLEDGES, "paused", "of 1 late ack_if_owner 1 were accepted, 0 refused"),
        (
            WRONG.format(name="queue: a message is handed on twice"),
            "SIGTERM",
            "2 messages were handled, not the one begun",
        ),
    ],
    ids=["anybody acknowledges", "handed on twice"],
)
def test_a_wrong_consumer_is_found_out(
    redis_url: str,
    tmp_path: Path,
    make_workers_wrong: Callable[[str], None],
    code: str,
    about: str,
    said: str,
) -> None:
    make_workers_wrong(code)
    with stream_scratch(redis_url) as corner:
        (check,) = [one for one in stream_faults(corner, Extent(signals=1), tmp_path) if about in one.name]
        (found,) = examined([check])
    assert (found.kind, found.detail) == ("broken", said)


def test_a_store_that_is_wrong_under_cancelled_calls_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_cancellations, "_SHORT", 30.0)  # leases are still valid when they are taken away
    (wrong,) = [m for m in MUTANTS if m.name == "SQLite: valid leases are rescued"]
    with open_for_checks(f"sqlite:///{tmp_path}/jobs.db") as store, wrong.applied():
        (found,) = examined(job_cancellations.job_cancellations(store, Extent(cancels=30), tmp_path))
    assert found.detail.startswith("the history is broken: two-holders: "), found


def test_kills_that_were_not_made_are_not_kept(tmp_path: Path) -> None:
    """There is no work, so no process begins and none is killed: that is not a success."""
    order = {"work": "jobs", "dsn": f"sqlite:///{tmp_path}/jobs.db", "queue": "empty", "held": False}
    order |= {"history": str(tmp_path / "history"), "prefetch": None, "seconds": 0.0, "lease_ttl": 1.0}
    with pytest.raises(TimeoutError, match="0 of 1 processes were killed"):
        kill_until(order, 1, left=lambda: 0, feed=lambda: None, patience=1.0)


def test_what_is_asked_for_0_times_is_left_out(tmp_path: Path) -> None:
    verdict = verify(f"sqlite:///{tmp_path}/jobs.db", work=10, **NO_FAULTS)
    left_out = [one.detail for one in verdict.findings if one.kind == "skipped"]
    assert left_out == [f"{name}=0 was requested" for name in ("kills", "signals", "signals", "cancels")]
    assert verdict.ok


def test_a_proxy_cannot_look_into_tls_and_the_check_says_so(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    signed = Authority(tmp_path, "ours").sign("IP:127.0.0.1")
    with TlsFront(redis_server.port, signed) as front:
        url = at_port(redis_server.url, front.port).replace("redis:", "rediss:")
        url += "?ssl_cert_reqs=none&ssl_check_hostname=false"
        verdict = verify(url, work=10, **NO_FAULTS | {"cuts": 5})
    cut = finding(verdict, "connections cut")
    assert (cut.kind, verdict.ok) == ("skipped", True), verdict
    assert "cannot read TLS; with redis://" in cut.detail


def test_a_proxy_cannot_look_into_the_tls_of_postgresql(tmp_path: Path) -> None:
    signed = Authority(tmp_path, "ours").sign("IP:127.0.0.1")
    with PostgresServer(fsync=False) as server, ExitStack() as stack:
        port = server.port
        if not own_tls_of_postgres(server, signed):
            port = stack.enter_context(TlsFront(server.port, signed, postgres=True)).port
        dsn = server.dsn.replace(f":{server.port}/", f":{port}/")
        with store_scratch(f"{dsn}?sslmode=require") as corner, open_for_checks(corner) as store:
            (cut,) = examined([cuts_of(store, tmp_path, 5)])
        assert (cut.kind, cut.detail.partition(";")[2]) == ("skipped", SKIPPED), cut


def test_a_server_that_goes_away_in_between_is_an_error_of_ours() -> None:
    with RedisServer() as server, pytest.raises(QueueConnectionError, match="settings|remove the keys"):
        verify(server.url, work=10, **NO_FAULTS, tell=lambda found: server.kill())
    with PostgresServer() as server, pytest.raises(StoreUnavailableError, match="DROP SCHEMA") as caught:
        verify(server.dsn, work=10, **NO_FAULTS, tell=lambda found: server.kill())
    assert isinstance(caught.value.__cause__, psycopg.Error)
