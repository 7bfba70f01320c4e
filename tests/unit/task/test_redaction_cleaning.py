"""Exceptions that hold credentials: shown without them, never changed, and never slowly."""

from __future__ import annotations

import pickle
import time
from typing import Any

import pytest

from conquiet.errors import redact
from conquiet.redaction import error_text, traceback_text
from conquiet.task import Transaction
from conquiet.task.exceptions import ExceptionCategory, RedactedError, TransactionException
from conquiet.task.failures import copy_for, presentable, text_of
from tests.unit.task.both import Engine, failing, on_both, policy
from tests.unit.task.canaries import CANARY, DSNS, FAILURES, Unusual, every_failure, shown

pytestmark = pytest.mark.clause("E-25")


def state(error: BaseException) -> list[Any]:
    """Everything that could be changed in an exception and in those that led to it."""
    found: dict[int, BaseException] = {}
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is not None and id(one) not in found:
            found[id(one)] = one
            waiting += (one.__cause__, one.__context__)
            if isinstance(one, BaseExceptionGroup):
                waiting += one.exceptions
    return [
        (repr(one), str(one), one.args, dict(vars(one)), one.__cause__, one.__context__)
        for one in found.values()
    ]


@every_failure
def test_what_is_shown_has_no_credentials_and_the_exception_is_not_changed(kind: str) -> None:
    error = FAILURES[kind](DSNS[0])
    before = state(error)
    clean = presentable(error)
    assert CANARY not in shown(clean)
    assert state(error) == before
    assert isinstance(clean, RedactedError)
    assert clean.original is error
    assert type(error).__qualname__ in str(clean)


@every_failure
@on_both
def test_a_task_gets_the_exception_that_it_raised_unchanged_as_the_cause(variant: str, kind: str) -> None:
    error = FAILURES[kind](DSNS[0])
    before = state(error)
    engine = Engine(variant)
    outcome = engine.live(engine.task(failing(error)), Transaction("a"))
    assert isinstance(outcome.exception, TransactionException)
    assert CANARY not in shown(outcome.exception)
    if not isinstance(error, TransactionException):
        assert outcome.exception.cause is error
    assert state(error) == before


def test_an_exception_without_credentials_is_shown_itself() -> None:
    inner = OSError(2, "No such file", "settings.toml")
    error = ValueError("plain", 7, {"a": 1})
    error.__cause__ = inner
    before = state(error)
    assert presentable(error) is error
    assert state(error) == before


def test_a_stand_in_keeps_its_place_in_the_chain() -> None:
    bottom = ValueError("at the bottom")
    middle = Unusual.Stubborn(DSNS[0])
    middle.__cause__ = bottom
    top = LookupError("on top")
    top.__context__ = middle
    above = presentable(top)
    assert isinstance(above, RedactedError)
    assert str(above) == "LookupError: on top"
    stand_in = above.__context__
    assert isinstance(stand_in, RedactedError)
    assert stand_in.error_type.endswith("Unusual.Stubborn")
    assert stand_in.__cause__ is bottom
    assert above.__cause__ is None
    assert not above.__suppress_context__
    assert top.__context__ is middle


def test_a_chain_that_bites_its_tail_comes_to_an_end() -> None:
    one, two = ValueError(DSNS[0]), LookupError(DSNS[1])
    one.__context__, two.__context__ = two, one
    clean = presentable(one)
    assert CANARY not in shown(clean)
    assert clean.__context__ is not None
    assert clean.__context__.__context__ is clean


def test_a_chain_of_ten_thousand_is_no_problem() -> None:
    last: BaseException = ValueError(DSNS[0])
    for _ in range(10_000):
        above = ValueError("above")
        above.__cause__ = last
        last = above
    clean: BaseException | None = presentable(last)
    while clean is not None:
        assert CANARY not in str(clean)
        clean = clean.__cause__


@on_both
def test_two_hundred_groups_in_each_other_take_no_time(variant: str) -> None:
    def nested() -> BaseException:
        group: Exception = ValueError(DSNS[0])
        for number in range(200):
            group = ExceptionGroup(f"group {number}", [group])
        return group

    engine = Engine(variant)
    started = time.process_time()
    outcome = engine.live(engine.task(failing(nested())), Transaction("a"))
    assert time.process_time() - started < 2  # 20 s, before
    assert CANARY not in shown(outcome.exception)


@on_both
@pytest.mark.parametrize("kind", [ValueError, TransactionException])
def test_a_text_of_a_megabyte_is_cut_before_it_is_searched(variant: str, kind: type[Exception]) -> None:
    engine = Engine(variant)
    error = kind(f"password = {CANARY} " + "a=b@c://d " * 100_000)
    started = time.process_time()
    for _ in range(20):
        outcome = engine.live(engine.task(failing(error)), Transaction("a"))
    assert time.process_time() - started < 4  # 2.4 s for each of them, before
    assert CANARY not in shown(outcome.exception)
    assert len(shown(outcome.exception)) < 100_000


def test_the_copy_of_a_tasks_exception_keeps_its_class_and_what_it_carries() -> None:
    class Refusal(TransactionException):
        def __init__(self, code: int, where: str) -> None:
            super().__init__(f"refused by {where}", ExceptionCategory.BUSINESS)
            self.code = code
            self.where = where

    error = Refusal(17, DSNS[1])
    error.add_note("said twice")
    copy = copy_for("a", error)
    assert isinstance(copy, Refusal)
    assert (copy.code, copy.category, copy.transaction_id) == (17, ExceptionCategory.BUSINESS, "a")
    assert CANARY not in shown(copy) + copy.where + copy.message
    assert copy.__notes__ == ["said twice"]
    assert (error.transaction_id, error.where) == (None, DSNS[1])


def test_the_original_is_not_pickled_with_its_stand_in() -> None:
    assert CANARY.encode() not in pickle.dumps(presentable(ValueError(DSNS[0])))


def test_an_exception_whose_text_cannot_be_read_is_none_the_less_a_failure() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    engine = Engine("threads")
    outcome = engine.live(engine.task(failing(Mute())), Transaction("a"))
    assert (
        str(outcome.exception)
        == "transaction a: process raised Mute: (its text cannot be shown: RuntimeError)"
    )


@pytest.mark.parametrize("length", [10, 400, 600, 5_000])
@pytest.mark.parametrize("before", [0, 700, 1_000, 1_020, 1_500, 1_536])
@pytest.mark.parametrize(
    "form", ["postgresql://app:{}@db/prod", "password='{}' x", 'password="{}" x', "token={} x"]
)
def test_a_password_at_the_cut_is_not_shown_in_part(length: int, before: int, form: str) -> None:
    error = ValueError("-" * before + " " + form.format("s3cr3t" * (length // 6)) + " " + "-" * 3_000)
    assert "s3c" not in text_of(error)
    assert "s3c" not in error_text(error, 1_024)
    assert "s3c" not in traceback_text(error, 1_024)


def test_a_traceback_ends_with_the_message_even_if_that_is_long() -> None:
    text = traceback_text(ValueError("x" * 1_000_000), 8_192)
    assert "ValueError: xxx" in text
    assert len(text) < 8_193


@pytest.mark.parametrize("piece", ["a", "://:", "@://:", "password='", "a@", "x:", "://u:p@ ", "pwd='\\"])
def test_removing_secrets_takes_no_longer_than_reading(piece: str) -> None:
    text = piece * (300_000 // len(piece))
    started = time.perf_counter()
    redact(text)
    assert time.perf_counter() - started < 5  # quadratic time would take minutes


@on_both
def test_one_exception_for_many_transactions_is_told_with_each_ones_id(variant: str) -> None:
    refused = TransactionException("not today", ExceptionCategory.BUSINESS)
    told: list[TransactionException] = []
    engine = Engine(variant)

    def process(transaction: Transaction) -> None:
        raise refused

    task = engine.task(process, exception=lambda tx, error: told.append(error))
    report = engine.consume(task, [Transaction("a"), Transaction("b")], policy(batch=2))
    assert [error.transaction_id for error in told] == ["a", "b"]
    errors: list[Any] = [outcome.exception for outcome in report.outcomes]
    assert [error.transaction_id for error in errors] == ["a", "b"]
    assert refused.transaction_id is None
    assert not hasattr(refused, "__notes__")
