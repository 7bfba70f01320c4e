"""Policies are data: checked when built, immutable, JSON in and out, across releases."""

from __future__ import annotations

import dataclasses
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conquiet.errors import ConquietError, PolicyError
from conquiet.task import Transaction
from conquiet.task.mixins import policies
from conquiet.task.mixins.policies import (
    BatchPolicy,
    ConcurrencyPolicy,
    ConsumerLoopPolicy,
    ConsumerPolicy,
    ConsumerSteps,
    EmptyQueuePolicy,
    ExceptionPolicy,
    FetchPolicy,
    ProcessPolicy,
    RetryPolicy,
    SuccessPolicy,
)
from tests.unit.task.both import Engine, on_both

pytestmark = pytest.mark.clause("E-26")

GOLDEN = Path(__file__).parent / "golden"
ALL = [getattr(policies, name) for name in policies.__all__]

FULL = ConsumerPolicy(
    ConsumerLoopPolicy(
        batch=BatchPolicy(size=100, min_size=1, max_size=500, interval=0.25),
        concurrency=ConcurrencyPolicy(value=8, min=2, max=32),
        timeout=3600.0,
        limit=1_000_000,
        transaction_timeout=30.5,
        streaming=True,
        empty_queue=EmptyQueuePolicy(backoff=0.05, backoff_multiplier=1.5, backoff_cap=2.0),
        strict_io=True,
        max_abandoned_threads=0,
    ),
    ConsumerSteps(
        fetch=FetchPolicy(
            RetryPolicy(5, 10.0, 0.5, 2.0, 30.0), {"queue": "emails", "only": ["a", {"b": None}]}
        ),
        process=ProcessPolicy(RetryPolicy(3, 2.5, 0.1, 3.0, 1.0)),
        success=SuccessPolicy(RetryPolicy(2, 1.0)),
        exception=ExceptionPolicy(RetryPolicy(4, None, 1.0, 1.0)),
    ),
)


@pytest.mark.parametrize(
    ("policy", "defaults"),
    [
        (
            RetryPolicy,
            {"max_attempts": 1, "timeout": None, "backoff": 0, "backoff_multiplier": 2, "backoff_cap": 0},
        ),
        (ConcurrencyPolicy, {"value": 1, "min": 1, "max": None}),
        (BatchPolicy, {"size": 1, "min_size": None, "max_size": None, "interval": 0}),
        (EmptyQueuePolicy, {"backoff": 0.1, "backoff_multiplier": 2, "backoff_cap": 5}),
        (FetchPolicy, {"retry": RetryPolicy(), "extra": {}}),
        (ProcessPolicy, {"retry": RetryPolicy()}),
        (SuccessPolicy, {"retry": RetryPolicy()}),
        (ExceptionPolicy, {"retry": RetryPolicy()}),
        (
            ConsumerSteps,
            {
                "fetch": FetchPolicy(),
                "process": ProcessPolicy(),
                "success": SuccessPolicy(),
                "exception": ExceptionPolicy(),
            },
        ),
        (
            ConsumerLoopPolicy,
            {
                "batch": BatchPolicy(),
                "concurrency": ConcurrencyPolicy(),
                "timeout": None,
                "limit": None,
                "transaction_timeout": None,
                "streaming": False,
                "empty_queue": EmptyQueuePolicy(),
                "strict_io": False,
                "max_abandoned_threads": 16,
            },
        ),
        (ConsumerPolicy, {"loop": ConsumerLoopPolicy(), "steps": ConsumerSteps()}),
    ],
)
def test_the_fields_and_defaults_are_those_of_the_policy_model(policy: Any, defaults: dict[str, Any]) -> None:
    made = policy()
    assert {field.name: getattr(made, field.name) for field in dataclasses.fields(made)} == defaults


BAD_COUNTS: list[Any] = [0, -1, 1.0, "1", True]
BAD_SECONDS: list[Any] = [0, -0.1, float("nan"), float("inf"), "1", True, 10**400]
BAD_DELAYS: list[Any] = [-0.1, float("nan"), float("inf"), None, "1", False, 10**400]
REFUSED: dict[Any, dict[str, list[Any]]] = {
    RetryPolicy: {
        "max_attempts": [*BAD_COUNTS, None],
        "timeout": BAD_SECONDS,
        "backoff": BAD_DELAYS,
        "backoff_multiplier": [*BAD_DELAYS, 0.99],
        "backoff_cap": BAD_DELAYS,
    },
    ConcurrencyPolicy: {"value": [*BAD_COUNTS, None], "min": [*BAD_COUNTS, None], "max": BAD_COUNTS},
    BatchPolicy: {
        "size": [*BAD_COUNTS, None],
        "min_size": BAD_COUNTS,
        "max_size": BAD_COUNTS,
        "interval": BAD_DELAYS,
    },
    EmptyQueuePolicy: {
        "backoff": BAD_DELAYS,
        "backoff_multiplier": [*BAD_DELAYS, 0.99],
        "backoff_cap": BAD_DELAYS,
    },
    ConsumerLoopPolicy: {
        "batch": [None, 10, {"size": 10}],
        "concurrency": [None, 4],
        "timeout": BAD_SECONDS,
        "limit": BAD_COUNTS,
        "transaction_timeout": BAD_SECONDS,
        "streaming": [0, 1, None, "yes"],
        "empty_queue": [None, RetryPolicy()],
        "strict_io": [0, 1, None],
        "max_abandoned_threads": [-1, 1.0, True, None],
    },
    FetchPolicy: {"retry": [None, 3, EmptyQueuePolicy()], "extra": [None, [], {1: 2}, {"batch_size": 3}]},
    ProcessPolicy: {"retry": [None, {}]},
    SuccessPolicy: {"retry": [None, {}]},
    ExceptionPolicy: {"retry": [None, {}]},
    ConsumerSteps: {
        "fetch": [None, ProcessPolicy()],
        "process": [None, SuccessPolicy()],
        "success": [None, ProcessPolicy()],
        "exception": [None, RetryPolicy()],
    },
    ConsumerPolicy: {"loop": [None, ConsumerSteps()], "steps": [None, ConsumerLoopPolicy()]},
}


@pytest.mark.parametrize(
    ("policy", "field", "value"),
    [
        (policy, name, bad)
        for policy, names in REFUSED.items()
        for name, all_bad in names.items()
        for bad in all_bad
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else repr(value)[:30],
)
def test_a_value_that_makes_no_sense_is_refused_by_the_name_of_its_field(
    policy: Any, field: str, value: Any
) -> None:
    with pytest.raises(PolicyError) as caught:
        policy(**{field: value})
    assert f"{policy.__name__}.{field}" in str(caught.value)
    assert len(str(caught.value)) < 200
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, ConquietError)


def test_every_field_is_checked() -> None:
    assert {(policy, name) for policy, names in REFUSED.items() for name in names} == {
        (policy, field.name) for policy in ALL for field in dataclasses.fields(policy)
    }


@pytest.mark.parametrize("values", [{"min": 2}, {"value": 5, "max": 4}, {"value": 3, "min": 4, "max": 5}])
def test_concurrency_stays_within_its_own_bounds(values: dict[str, int]) -> None:
    with pytest.raises(PolicyError, match="min <= value <= max"):
        ConcurrencyPolicy(**values)


def test_a_dsn_in_the_wrong_place_is_not_shown() -> None:
    with pytest.raises(PolicyError) as caught:
        RetryPolicy(timeout="redis://:hunter2@localhost")  # type: ignore[arg-type]
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("policy", ALL, ids=lambda policy: policy.__name__)
def test_no_field_can_be_changed(policy: Any) -> None:
    made = policy()
    for field in dataclasses.fields(made):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(made, field.name, getattr(made, field.name))
    with pytest.raises((AttributeError, TypeError)):
        made.something_else = 1


def test_what_was_given_as_extra_and_what_is_read_from_it_are_copies() -> None:
    given_extra: dict[str, Any] = {"queues": ["a"], "filter": {"kind": ["x"]}}
    made = FetchPolicy(extra=given_extra)
    before = made.to_json()
    given_extra["queues"].append("b")
    made.extra["filter"]["kind"].append("y")
    made.to_dict()["extra"]["queues"].append("c")
    with pytest.raises(TypeError):
        made.extra["queues"] = []  # type: ignore[index]
    assert made.to_json() == before
    assert made.extra == {"queues": ["a"], "filter": {"kind": ["x"]}}
    assert dict(**made.extra) == made.extra


@pytest.mark.parametrize("value", [float("nan"), b"bytes", {1: "a"}, {"a"}, object(), "\ud800"])
def test_extra_is_json_that_comes_back_equal(value: Any) -> None:
    with pytest.raises(PolicyError, match=r"FetchPolicy\.extra must be JSON"):
        FetchPolicy(extra={"deep": [value]})


def test_extra_that_contains_itself_is_refused() -> None:
    circle: dict[str, Any] = {}
    circle["circle"] = circle
    with pytest.raises(PolicyError, match=r"FetchPolicy\.extra must be JSON"):
        FetchPolicy(extra=circle)


counts = st.integers(1, 10**9)
delays = st.one_of(st.integers(0, 1000), st.floats(0, 1e9))
seconds = st.none() | st.floats(1e-9, 1e9)
multipliers = st.floats(1, 1e6)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(-1e9, 1e9)
    | st.text("aé\x00 ☃", max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc"), inner, max_size=3),
    max_leaves=5,
)
retries = st.builds(RetryPolicy, counts, seconds, delays, multipliers, delays)
loops = st.builds(
    ConsumerLoopPolicy,
    batch=st.builds(BatchPolicy, counts, st.none() | counts, st.none() | counts, delays),
    concurrency=st.builds(
        lambda low, more, most: ConcurrencyPolicy(low + more, low, low + more + most), *[counts] * 3
    ),
    timeout=seconds,
    limit=st.none() | counts,
    transaction_timeout=seconds,
    streaming=st.booleans(),
    empty_queue=st.builds(EmptyQueuePolicy, delays, multipliers, delays),
    strict_io=st.booleans(),
    max_abandoned_threads=st.integers(0, 100),
)
steps = st.builds(
    ConsumerSteps,
    st.builds(FetchPolicy, retries, st.dictionaries(st.text("abc"), values, max_size=3)),
    st.builds(ProcessPolicy, retries),
    st.builds(SuccessPolicy, retries),
    st.builds(ExceptionPolicy, retries),
)


@given(st.builds(ConsumerPolicy, loops, steps))
def test_every_policy_comes_back_from_dict_json_and_pickle(policy: ConsumerPolicy) -> None:
    plain = policy.to_dict()
    assert ConsumerPolicy.from_dict(plain) == policy
    assert json.loads(json.dumps(plain)) == plain  # it contains only JSON types
    assert ConsumerPolicy.from_json(policy.to_json()) == policy
    assert ConsumerPolicy.from_json(policy.to_json()).to_json() == policy.to_json()
    assert pickle.loads(pickle.dumps(policy)) == policy
    assert hash(ConsumerPolicy.from_dict(plain)) == hash(policy)


@pytest.mark.parametrize(
    ("data", "policy", "key"),
    [
        ({"lop": {}}, "ConsumerPolicy", "lop"),
        ({"loop": {"batch": {"sise": 3}}}, "BatchPolicy", "sise"),
        ({"loop": {"concurrency": {"workers": 3}}}, "ConcurrencyPolicy", "workers"),
        ({"steps": {"proces": {}}}, "ConsumerSteps", "proces"),
        ({"steps": {"process": {"retry": {"max_retries": 3}}}}, "RetryPolicy", "max_retries"),
        ({"steps": {"process": {"extra": {}}}}, "ProcessPolicy", "extra"),
        ({1: {}}, "ConsumerPolicy", "1"),
    ],
)
def test_an_unknown_key_is_refused_by_name_wherever_it_is(
    data: dict[Any, Any], policy: str, key: str
) -> None:
    with pytest.raises(PolicyError, match=rf"{policy} has no field '?{key}'?; it has: "):
        ConsumerPolicy.from_dict(data)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "1", '"loop"', '{"loop": []}', '{"loop": 3}', None, "[" * 100_000]
)
def test_what_is_not_an_object_is_refused(text: Any) -> None:
    with pytest.raises(PolicyError):
        ConsumerPolicy.from_json(text)


def test_keys_left_out_have_their_defaults() -> None:
    assert ConsumerPolicy.from_dict({}) == ConsumerPolicy()
    made = ConsumerPolicy.from_json('{"steps": {"process": {"retry": {"max_attempts": 3}}}}')
    assert made == ConsumerPolicy(steps=ConsumerSteps(process=ProcessPolicy(RetryPolicy(max_attempts=3))))


@pytest.mark.parametrize(
    ("name", "policy"), [("policy-0.1-defaults", ConsumerPolicy()), ("policy-0.1-full", FULL)]
)
def test_what_a_release_wrote_still_means_the_same(name: str, policy: ConsumerPolicy) -> None:
    """These files never change: a release that adds a field adds a file."""
    text = (GOLDEN / f"{name}.json").read_text(encoding="utf-8")
    assert ConsumerPolicy.from_json(text) == policy
    assert contains(policy.to_dict(), json.loads(text))


def contains(now: Any, then: Any) -> bool:
    """Whether `now` has everything that `then` has, with the same values. `now` may have more."""
    if isinstance(then, dict) and isinstance(now, dict):
        return all(key in now and contains(now[key], value) for key, value in then.items())
    return bool(now == then) and type(now) is type(then)


@on_both
def test_the_engine_does_not_change_them_and_nor_can_a_connector(variant: str) -> None:
    policy = dataclasses.replace(FULL, loop=dataclasses.replace(FULL.loop, streaming=False, limit=3))
    before, seen = policy.to_json(), []

    class Greedy:
        left = 3

        def fetch(self, size: int, **extra: Any) -> list[Transaction]:
            seen.append(json.dumps(extra, sort_keys=True))
            extra["only"].append("mine")
            extra["only"][1]["b"] = extra
            self.left -= 1
            return [Transaction(str(self.left))]

    engine = Engine(variant)
    assert engine.consume(engine.task(), Greedy(), policy).succeeded == 3
    assert policy.to_json() == before
    assert seen == [json.dumps({"only": ["a", {"b": None}], "queue": "emails"})] * 3  # the same each time
