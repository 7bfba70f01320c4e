"""The loop: how many transactions in parallel and in total, for how long, and how it ends."""

from __future__ import annotations

from conquiet.task.mixins.policies import EmptyQueuePolicy
from tests.parity.task.scenario import Scenario
from tests.parity.task.script import Script, bad, ok, policy, retry


def _ids(count: int) -> list[str]:
    return [f"t{number}" for number in range(count)]


def _waves(concurrency: int, count: int) -> Scenario:
    """`count` transactions of 10 s each in batches of 8: every worker is refilled as soon as it is free."""
    ids = _ids(count)
    fetches = tuple(ok(" ".join(ids[at : at + 8])) for at in range(0, count, 8))
    lives = {
        name: f"process {at}-{at + 10}; success({name}) {at + 10}-{at + 10}"
        for number, name in enumerate(ids)
        for at in (number // concurrency * 10,)
    }
    return Scenario(
        f"{count} transactions, {concurrency} at a time",
        ("E-13", "E-14", "E-21"),
        policy(batch=8, concurrency=concurrency),
        Script(fetches, {f"{name} process": (ok(name, 10),) for name in ids}),
        lives=lives,
        ends=f"drained {count}/{count}/0/0",
        settled="; ".join(f"{name} succeeded ={name} x1" for name in ids),
        most=concurrency,
    )


SCENARIOS = [
    _waves(1, 5),
    _waves(4, 18),
    _waves(32, 80),
    Scenario(
        "workers are refilled as they complete, not batch by batch",
        ("E-13", "E-14"),
        policy(batch=4, concurrency=2),
        Script(
            (ok("a b c d"),),
            {
                "a process": (ok("A", 100),),
                "b process": (ok("B", 1),),
                "c process": (ok("C", 1),),
                "d process": (ok("D", 1),),
            },
        ),
        lives={
            "a": "process 0-100; success(A) 100-100",
            "b": "process 0-1; success(B) 1-1",
            "c": "process 1-2; success(C) 2-2",
            "d": "process 2-3; success(D) 3-3",
        },
        fetches="fetch(4) 0-0; fetch(4) 3-3",
        ends="drained 4/4/0/0",
        most=2,
    ),
    Scenario(
        "failures of one transaction are not another's",
        ("E-13", "E-14", "E-21"),
        policy(batch=3, concurrency=3, process=retry(2, timeout=5, backoff=2)),
        Script(
            (ok("a b c"),),
            {"a process": (bad("BUSINESS", 1),), "b process": (ok(takes=50), bad("ValueError", 1))},
        ),
        lives={
            "a": "process 0-1 !BUSINESS; exception(BUSINESS) 1-1",
            "b": "process 0-; process 7-8 !ValueError; exception(SYSTEM ValueError) 8-8",
            "c": "process 0-0; success(c!) 0-0",
        },
        ends="drained 3/1/2/0",
        outcomes="a failed BUSINESS handled x1; b failed SYSTEM handled x2; c succeeded =c! x1",
    ),
    # -- the same id twice -----------------------------------------------------------------------------------------
    Scenario(
        "an id that is in flight waits until the first has finished",
        ("E-21",),
        policy(batch=4, concurrency=4),
        Script(
            (ok("a a b a"),), {"a process": (ok("1", 3), ok("2", 3), ok("3", 3)), "b process": (ok("B", 1),)}
        ),
        lives={
            "a": "process 0-3; success(1) 3-3; process 3-6; success(2) 6-6; process 6-9; success(3) 9-9",
            "b": "process 0-1; success(B) 1-1",
        },
        ends="drained 4/4/0/0",
        settled="a succeeded =1 x1; a succeeded =2 x1; a succeeded =3 x1; b succeeded =B x1",
        most=2,
    ),
    Scenario(
        "an id that has finished may come again",
        ("E-21",),
        policy(),
        Script((ok("a"), ok("a")), {"a process": (bad("BUSINESS"), ok("again"))}),
        lives={"a": "process 0-0 !BUSINESS; exception(BUSINESS) 0-0; process 0-0; success(again) 0-0"},
        ends="drained 2/1/1/0",
    ),
    # -- the limit -------------------------------------------------------------------------------------------------
    Scenario(
        "limit: the last fetch asks for the remainder",
        ("E-19", "E-09"),
        policy(batch=3, limit=5),
        Script((ok("a b c"), ok("d e"), ok("never"))),
        lives={name: f"process 0-0; success({name}!) 0-0" for name in "abcde"},
        fetches="fetch(3) 0-0; fetch(2) 0-0",
        ends="limit 5/5/0/0",
    ),
    Scenario(
        "limit, failures included",
        ("E-19",),
        policy(batch=5, limit=2),
        Script((ok("a b"),), {"a process": (bad("BUSINESS"),)}),
        lives={
            "a": "process 0-0 !BUSINESS; exception(BUSINESS) 0-0",
            "b": "process 0-0; success(b!) 0-0",
        },
        fetches="fetch(2) 0-0",
        ends="limit 2/1/1/0",
    ),
    Scenario(
        "limit under concurrency: exactly so many",
        ("E-19",),
        policy(batch=2, concurrency=4, limit=7),
        Script(
            tuple(ok(ids) for ids in ("a b", "c d", "e f", "g", "never")),
            {f"{name} process": (ok(name, 10),) for name in "abcdefg"},
        ),
        lives={
            **{name: f"process 0-10; success({name}) 10-10" for name in "abcd"},
            **{name: f"process 10-20; success({name}) 20-20" for name in "efg"},
        },
        fetches="fetch(2) 0-0; fetch(2) 0-0; fetch(2) 10-10; fetch(1) 10-10",
        ends="limit 7/7/0/0",
        most=4,
    ),
    Scenario(
        "limit with less there than was asked for",
        ("E-19", "E-09"),
        policy(batch=4, limit=6, streaming=True, empty_queue=EmptyQueuePolicy(1)),
        Script((ok("a"), ok("b c d e"), ok(), ok("f"))),
        lives={
            **{name: f"process 0-0; success({name}!) 0-0" for name in "abcde"},
            "f": "process 1-1; success(f!) 1-1",
        },
        fetches="fetch(4) 0-0; fetch(4) 0-0; fetch(1) 0-0; fetch(1) 1-1",
        ends="limit 6/6/0/0",
    ),
    # -- the loop's time limit -------------------------------------------------------------------------------------
    Scenario(
        "loop timeout in a fetch",
        ("E-17", "E-18"),
        policy(timeout=10, fetch=retry(3, timeout=30)),
        Script((ok("a", 4), ok("lost", 100))),
        lives={"a": "process 4-4; success(a!) 4-4"},
        fetches="fetch(1) 0-4; fetch(1) 4-",
        ends="loop timeout 1/1/0/0",
        ended=10,
        settled="a succeeded =a! x1",
    ),
    Scenario(
        "loop timeout in the backoff of a fetch",
        ("E-17",),
        policy(timeout=10, fetch=retry(3, backoff=30)),
        Script((bad("ValueError", 4),)),
        fetches="fetch(1) 0-4 !ValueError",
        ends="loop timeout 0/0/0/0",
        ended=10,
    ),
    Scenario(
        "loop timeout while streaming on an empty queue",
        ("E-17", "E-12"),
        policy(timeout=10, streaming=True, empty_queue=EmptyQueuePolicy(4, 2, 0)),
        Script(),
        fetches="fetch(1) 0-0; fetch(1) 4-4",
        ends="loop timeout 0/0/0/0",
        ended=10,
    ),
    Scenario(
        "loop timeout while waiting for a free worker: in flight and not begun are reported",
        ("E-17", "E-29"),
        policy(timeout=10, batch=3),
        Script((ok("a b c"),), {"a process": (ok("A", 4),), "b process": (ok("B", 100),)}),
        lives={"a": "process 0-4; success(A) 4-4", "b": "process 4-"},
        fetches="fetch(3) 0-0",
        ends="loop timeout 3/1/0/2",
        ended=10,
        outcomes="a succeeded =A x1; b unsettled x1; c unsettled x0",
        settled="a succeeded =A x1",
        released="b unsettled x1; c unsettled x0",
    ),
    Scenario(
        "loop timeout while what was fetched last is finished",
        ("E-17", "E-19"),
        policy(timeout=10, batch=2, limit=2, concurrency=2),
        Script((ok("a b"),), {"a process": (ok("A", 4),), "b process": (ok("B", 100),)}),
        lives={"a": "process 0-4; success(A) 4-4", "b": "process 0-"},
        ends="loop timeout 2/1/0/1",
        ended=10,
        settled="a succeeded =A x1",
        released="b unsettled x1",
    ),
    Scenario(
        "loop timeout in a success handler: unsettled, and no exception handler",
        ("E-17", "E-08"),
        policy(timeout=10),
        Script((ok("a"),), {"a success": (ok(takes=100),)}),
        lives={"a": "process 0-0; success(a!) 0-"},
        ends="loop timeout 1/0/0/1",
        ended=10,
        settled="",
        released="a unsettled x1",
    ),
    Scenario(
        "loop timeout in a backoff of process",
        ("E-17",),
        policy(timeout=10, process=retry(5, backoff=100)),
        Script((ok("a"),), {"a process": (bad("SYSTEM"),)}),
        lives={"a": "process 0-0 !SYSTEM"},
        ends="loop timeout 1/0/0/1",
        ended=10,
        released="a unsettled x1",
    ),
    Scenario(
        "loop timeout in a third attempt",
        ("E-17", "E-18"),
        policy(timeout=10, process=retry(5, timeout=4, backoff=1, multiplier=1)),
        Script((ok("a"),), {"a process": (bad("SYSTEM", 1), ok(takes=100), ok(takes=100))}),
        lives={"a": "process 0-1 !SYSTEM; process 2-; process 7-"},
        ends="loop timeout 1/0/0/1",
        ended=10,
        released="a unsettled x3",
    ),
    Scenario(
        "loop timeout with everybody busy, under step and transaction limits",
        ("E-17", "E-18"),
        policy(timeout=10, batch=4, concurrency=4, transaction_timeout=50, process=retry(5, timeout=30)),
        Script((ok("a b c d"),), {f"{name} process": (ok(takes=100),) for name in "abcd"}),
        lives=dict.fromkeys("abcd", "process 0-"),
        ends="loop timeout 4/0/0/4",
        ended=10,
        released="a unsettled x1; b unsettled x1; c unsettled x1; d unsettled x1",
    ),
    Scenario(
        "a transaction's timeout does not end the loop, nor does the loop's count per transaction",
        ("E-15", "E-17", "E-18"),
        policy(timeout=100, transaction_timeout=10),
        Script((ok("a"), ok("b"), ok("c")), {f"{name} process": (ok(takes=200),) for name in "abc"}),
        lives={
            "a": "process 0-; exception(TIMEOUT CallTimeoutError) 10-10",
            "b": "process 10-; exception(TIMEOUT CallTimeoutError) 20-20",
            "c": "process 20-; exception(TIMEOUT CallTimeoutError) 30-30",
        },
        ends="drained 3/0/3/0",
    ),
    Scenario(
        "transaction_timeout runs from the beginning of the lifecycle, not from the fetch",
        ("E-15", "E-18"),
        policy(batch=2, transaction_timeout=10),
        Script((ok("a b", 30),), {"a process": (ok("A", 9),), "b process": (ok("B", 9),)}),
        lives={"a": "process 30-39; success(A) 39-39", "b": "process 39-48; success(B) 48-48"},
        ends="drained 2/2/0/0",
    ),
]
