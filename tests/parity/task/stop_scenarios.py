"""stop(): no new fetch; what has begun is finished and settled; the rest is reported."""

from __future__ import annotations

from conquiet.task.mixins.policies import EmptyQueuePolicy
from tests.parity.task.scenario import Scenario
from tests.parity.task.script import Act, Script, bad, ok, policy, retry

SCENARIOS = [
    Scenario(
        "stop() in process: what has begun is finished and settled, the rest is reported",
        ("E-36", "E-29"),
        policy(batch=3),
        Script((ok("a b c"),), {"a process": (Act(5, "A", stops=True),)}),
        lives={"a": "process 0-5; success(A) 5-5"},
        fetches="fetch(3) 0-0",
        ends="stopped 3/1/0/2",
        outcomes="a succeeded =A x1; b unsettled x0; c unsettled x0",
        settled="a succeeded =A x1",
        released="b unsettled x0; c unsettled x0",
    ),
    Scenario(
        "stop() beside others: all that have begun are finished, retries included",
        ("E-36",),
        policy(batch=4, concurrency=3, process=retry(3, backoff=10)),
        Script(
            (ok("a b c d"),),
            {
                "a process": (ok("A", 20),),
                "b process": (bad("SYSTEM", 2), bad("SYSTEM", 2), ok("B", 2)),
                "c process": (ok("C", 1),),
                "d process": (Act(4, "D", stops=True),),
            },
        ),
        lives={
            "a": "process 0-20; success(A) 20-20",
            "b": "process 0-2 !SYSTEM; process 12-14 !SYSTEM; process 34-36; success(B) 36-36",
            "c": "process 0-1; success(C) 1-1",
            "d": "process 1-5; success(D) 5-5",
        },
        fetches="fetch(4) 0-0",
        ends="stopped 4/4/0/0",
    ),
    Scenario(
        "stop() while a fetch is under way: what it brings is reported, not run",
        ("E-36",),
        policy(batch=2, concurrency=2),
        Script((ok("a"), ok("b c", 20)), {"a process": (ok("A", 3),), "a success": (Act(1, stops=True),)}),
        lives={"a": "process 0-3; success(A) 3-4"},
        fetches="fetch(2) 0-0; fetch(2) 0-20",
        ends="stopped 3/1/0/2",
        settled="a succeeded =A x1",
        released="b unsettled x0; c unsettled x0",
    ),
    Scenario(
        "stop() in the backoff of a fetch",
        ("E-36",),
        policy(concurrency=2, fetch=retry(5, backoff=100)),
        Script(
            (ok("a"), bad("ValueError")), {"a process": (ok("A", 3),), "a success": (Act(1, stops=True),)}
        ),
        lives={"a": "process 0-3; success(A) 3-4"},
        fetches="fetch(1) 0-0; fetch(1) 0-0 !ValueError",
        ends="stopped 1/1/0/0",
        ended=4,
    ),
    Scenario(
        "stop() while streaming on an empty queue",
        ("E-36", "E-12"),
        policy(concurrency=2, streaming=True, empty_queue=EmptyQueuePolicy(100)),
        Script((ok("a"),), {"a process": (ok("A", 3),), "a success": (Act(1, stops=True),)}),
        lives={"a": "process 0-3; success(A) 3-4"},
        fetches="fetch(1) 0-0; fetch(1) 0-0",
        ends="stopped 1/1/0/0",
        ended=4,
    ),
    Scenario(
        "stop() after the last fetch",
        ("E-36",),
        policy(batch=3, limit=3),
        Script((ok("a b c"),), {"b process": (Act(5, "B", stops=True),)}),
        lives={"a": "process 0-0; success(a!) 0-0", "b": "process 0-5; success(B) 5-5"},
        ends="stopped 3/2/0/1",
        released="c unsettled x0",
    ),
    Scenario(
        "stop() with the same id waiting for the one that runs",
        ("E-36", "E-21"),
        policy(batch=2, concurrency=2),
        Script((ok("a a"),), {"a process": (ok("A", 3),), "a success": (Act(1, stops=True),)}),
        lives={"a": "process 0-3; success(A) 3-4"},
        ends="stopped 2/1/0/1",
        released="a unsettled x0",
    ),
    Scenario(
        "stop() after the limit was reached, with the same id waiting",
        ("E-36", "E-19"),
        policy(batch=2, concurrency=3, limit=2),
        Script((ok("a a"),), {"a process": (ok("A", 3),), "a success": (Act(1, stops=True),)}),
        lives={"a": "process 0-3; success(A) 3-4"},
        fetches="fetch(2) 0-0",
        ends="stopped 2/1/0/1",
        released="a unsettled x0",
    ),
]
