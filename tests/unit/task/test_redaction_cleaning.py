"""Removing credentials from exceptions: in place where possible, and never slowly."""

from __future__ import annotations

import time

import pytest

from conquiet.errors import redact
from conquiet.task import Transaction
from conquiet.task.exceptions import RedactedError, TransactionException, without_secrets
from tests.unit.task.both import Engine, failing
from tests.unit.task.canaries import CANARY, DSNS, FAILURES, Unusual, every_failure, shown

pytestmark = pytest.mark.clause("E-25")


@every_failure
def test_what_needs_no_stand_in_stays_what_it_was(kind: str) -> None:
    error = FAILURES[kind](DSNS[0])
    clean = without_secrets(error)
    assert CANARY not in shown(clean)
    if "stubborn" in kind or kind in ("a dict", "bytes", "named group", "SyntaxError"):
        assert isinstance(clean, TransactionException if "business" in kind else RedactedError)
        assert type(error).__qualname__ in str(clean) or "business" in kind
    else:
        assert clean is error


def test_an_exception_without_secrets_is_not_touched() -> None:
    inner = OSError(2, "No such file", "settings.toml")
    error = ValueError("plain", 7, {"a": 1})
    error.__cause__ = inner
    before = (error.args, inner.args, inner.filename)
    assert without_secrets(error) is error
    assert (error.args, inner.args, inner.filename) == before
    assert error.__cause__ is inner


def test_a_stand_in_keeps_its_place_in_the_chain() -> None:
    bottom = ValueError("at the bottom")
    middle = Unusual.Stubborn(DSNS[0])
    middle.__cause__ = bottom
    top = LookupError("on top")
    top.__context__ = middle
    assert without_secrets(top) is top
    stand_in = top.__context__
    assert isinstance(stand_in, RedactedError)
    assert stand_in.error_type.endswith("Unusual.Stubborn")
    assert stand_in.__cause__ is bottom
    assert top.__cause__ is None
    assert not top.__suppress_context__


def test_a_chain_that_bites_its_tail_comes_to_an_end() -> None:
    one, two = ValueError(DSNS[0]), LookupError(DSNS[1])
    one.__context__, two.__context__ = two, one
    assert CANARY not in str(without_secrets(one)) + str(two)


def test_a_chain_of_ten_thousand_is_no_problem() -> None:
    last: BaseException = ValueError(DSNS[0])
    for _ in range(10_000):
        above = ValueError("above")
        above.__cause__ = last
        last = above
    without_secrets(last)
    while last.__cause__ is not None:
        last = last.__cause__
    assert CANARY not in str(last)


def test_an_exception_whose_text_cannot_be_read_is_none_the_less_a_failure() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    engine = Engine("threads")
    outcome = engine.live(engine.task(failing(Mute())), Transaction("a"))
    assert str(outcome.exception) == "transaction a: process raised Mute: (no readable text)"


@pytest.mark.parametrize("piece", ["a", "://:", "@://:", "password='", "a@", "x:", "://u:p@ "])
def test_removing_secrets_takes_no_longer_than_reading(piece: str) -> None:
    text = piece * (300_000 // len(piece))
    started = time.perf_counter()
    redact(text)
    assert time.perf_counter() - started < 5  # quadratic time would take minutes
