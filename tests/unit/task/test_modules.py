"""The modules and names of the document, as other programs import them."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys

import pytest

from conquiet.errors import ConquietError
from conquiet.task import AsyncConsumerTask, ConsumerTask, Transaction
from conquiet.task.exceptions import (
    ExceptionCategory,
    FetchException,
    FetchTimeoutException,
    SettleException,
    TransactionException,
)
from conquiet.task.mixins.consumer import AsyncConsumerMixin, ConsumerMixin

pytestmark = pytest.mark.clause("E-31")

NAMES = {
    "conquiet.task": [
        "AsyncConnector",
        "AsyncConsumerTask",
        "Connector",
        "ConsumeReport",
        "ConsumerTask",
        "Outcome",
        "OutcomeStatus",
        "StopReason",
        "Transaction",
    ],
    "conquiet.task.mixins.consumer": ["AsyncConsumerMixin", "ConsumerMixin"],
    "conquiet.task.mixins.utils": [
        "run_with_timeout",
        "run_with_timeout_async",
        "with_context",
        "with_context_async",
    ],
    "conquiet.task.mixins.policies": [
        "BatchPolicy",
        "ConcurrencyPolicy",
        "ConsumerLoopPolicy",
        "ConsumerPolicy",
        "ConsumerSteps",
        "EmptyQueuePolicy",
        "ExceptionPolicy",
        "FetchPolicy",
        "ProcessPolicy",
        "RetryPolicy",
        "SuccessPolicy",
    ],
    "conquiet.task.exceptions": [
        "AbandonedThreadsError",
        "ExceptionCategory",
        "FetchException",
        "FetchTimeoutException",
        "SettleException",
        "TransactionException",
    ],
}


@pytest.mark.parametrize("module", NAMES)
def test_every_name_is_where_the_document_says(module: str) -> None:
    found = importlib.import_module(module)
    for name in NAMES[module]:
        assert name in found.__all__
        assert hasattr(found, name)


@pytest.mark.parametrize("name", ["run_with_timeout_async", "with_context_async"])
def test_the_asynchronous_helpers_give_coroutines(name: str) -> None:
    helper = getattr(importlib.import_module("conquiet.task.mixins.utils"), name)

    async def nothing() -> None:
        pass

    made = helper if name.startswith("run") else helper(nothing)
    assert inspect.iscoroutinefunction(made)


def test_the_variants_have_the_same_methods_with_the_same_parameters() -> None:
    def public(mixin: type) -> dict[str, list[tuple[str, object]]]:
        return {
            name: [
                (parameter.name, parameter.kind)
                for parameter in inspect.signature(method).parameters.values()
            ]
            for name, method in inspect.getmembers(mixin, inspect.isfunction)
            if not name.startswith("_")
        }

    assert public(ConsumerMixin) == public(AsyncConsumerMixin)
    assert {"consume_transactions", "start_processing", "stop"} <= set(public(ConsumerMixin))
    for name in ("consume_transactions", "start_processing"):
        assert inspect.iscoroutinefunction(getattr(AsyncConsumerMixin, name))
        assert not inspect.iscoroutinefunction(getattr(ConsumerMixin, name))
    assert issubclass(ConsumerTask, ConsumerMixin)
    assert issubclass(AsyncConsumerTask, AsyncConsumerMixin)


def test_a_transaction_is_an_id_a_payload_and_metadata_and_cannot_be_changed() -> None:
    transaction = Transaction("a", {"n": 1}, {"m": 2})
    assert (transaction.id, transaction.payload, transaction.metadata) == ("a", {"n": 1}, {"m": 2})
    assert transaction == Transaction(id="a", payload={"n": 1}, metadata={"m": 2})
    for name in ("id", "payload", "metadata"):
        with pytest.raises(AttributeError):
            setattr(transaction, name, None)


def test_a_transaction_exception_says_what_category_which_transaction_and_why() -> None:
    assert [category.value for category in ExceptionCategory] == ["BUSINESS", "SYSTEM", "TIMEOUT"]
    cause = ValueError("below")
    error = TransactionException("no such customer", ExceptionCategory.BUSINESS, "a", cause)
    assert str(error) == error.message == "no such customer"
    assert (error.category, error.transaction_id, error.cause) == (ExceptionCategory.BUSINESS, "a", cause)
    assert error.__cause__ is cause
    assert TransactionException("x").category is ExceptionCategory.SYSTEM
    assert TransactionException("x", "BUSINESS").category is ExceptionCategory.BUSINESS  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="nonsense"):
        TransactionException("x", "nonsense")  # type: ignore[arg-type]
    with pytest.raises(TransactionException) as raised:
        raise TransactionException("from") from cause
    assert raised.value.cause is cause


def test_what_ends_a_loop_is_in_the_one_tree_and_carries_a_report() -> None:
    for kind in (FetchException, FetchTimeoutException, SettleException):
        assert issubclass(kind, ConquietError)
        assert kind("text").report is None
    assert issubclass(FetchTimeoutException, FetchException)
    assert issubclass(FetchTimeoutException, TimeoutError)


def test_the_engine_needs_no_telemetry_and_no_driver_installed() -> None:
    program = """
import sys
for name in ("opentelemetry", "prometheus_client", "redis", "psycopg", "sqlalchemy"):
    sys.modules[name] = None
from conquiet.connectors import IterableConnector
from conquiet.task import ConsumerTask

class Double(ConsumerTask):
    def process_transaction(self, transaction):
        return 2 * transaction.payload

print(Double().consume_transactions(IterableConnector([1, 2, 3])))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "drained: 3 fetched, 3 succeeded, 0 failed, 0 unsettled\n"
    assert done.stderr == ""
