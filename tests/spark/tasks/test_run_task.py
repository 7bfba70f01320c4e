"""Tasks on executors: the same outcomes as the engine in one process, as rows."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from conquiet.connectors import IterableConnector
from conquiet.errors import PolicyError, TaskConfigError
from conquiet.spark.tasks import OUTCOME_SCHEMA, run_task
from conquiet.task import ConsumerTask, Outcome, Transaction
from conquiet.task.mixins.policies import (
    ConcurrencyPolicy,
    ConsumerLoopPolicy,
    ConsumerPolicy,
    ConsumerSteps,
    ProcessPolicy,
    RetryPolicy,
)
from tests.spark.tasks import tasks
from tests.spark.tasks.tasks import AsyncWork, Careless, Work

pytestmark = pytest.mark.clause("P-06")

# Spark's Python processes need not be able to import the tests: Spark ships these classes with the tasks.
cloudpickle.register_pickle_by_value(tasks)

PAYLOADS: dict[str, dict[str, Any]] = {
    "plain": {"result": {"score": 0.5, "tags": ["a", None], "big": 10**30}},
    "nothing": {},
    "scalar": {"result": "ü"},
    "recovers": {"fail": 2, "result": 3},
    "gives-up": {"fail": 9},
    "refused": {"refuse": True},
    "slow": {"sleep": 5},
}
POLICY = ConsumerPolicy(
    ConsumerLoopPolicy(concurrency=ConcurrencyPolicy(8)),
    ConsumerSteps(process=ProcessPolicy(RetryPolicy(max_attempts=3, timeout=0.3))),
)


def frame(spark: SparkSession, payloads: dict[str, dict[str, Any]]) -> DataFrame:
    rows = [(name, json.dumps(payload)) for name, payload in payloads.items()]
    return spark.createDataFrame(rows, "id STRING, data STRING")


def collected(outcomes: DataFrame) -> dict[str | None, tuple[Any, ...]]:
    rows = outcomes.collect()
    assert len({row.id for row in rows}) == len(rows)
    return {row.id: tuple(row)[1:] for row in rows}


@pytest.mark.parametrize("task", [Work(), AsyncWork()], ids=["threads", "asyncio"])
def test_outcomes_are_those_of_the_engine(spark: SparkSession, task: Any) -> None:
    here: dict[str, Outcome] = {}
    Work().consume_transactions(
        IterableConnector([Transaction(name, payload) for name, payload in PAYLOADS.items()]),
        POLICY,
        on_outcome=lambda outcome: here.update({outcome.transaction_id: outcome}),
    )
    there = run_task(frame(spark, PAYLOADS), task, POLICY)
    assert there.schema == OUTCOME_SCHEMA
    found = collected(there)
    assert set(found) == set(here)
    for name, (status, result, category, attempts, error) in found.items():
        assert name is not None
        outcome = here[name]
        assert (status, category, attempts) == (outcome.status, outcome.category, outcome.attempts), name
        assert (None if result is None else json.loads(result)) == outcome.result, name
        assert error == (None if outcome.exception is None else str(outcome.exception)), name
    assert found["gives-up"][2:4] == ("SYSTEM", 3)
    assert found["slow"][2:4] == ("TIMEOUT", 3)
    assert found["refused"] == ("failed", None, "BUSINESS", 1, "no such report")


def test_rows_that_are_no_transactions_fail_with_the_reason(spark: SparkSession) -> None:
    rows = [("good", "{}"), ("array", "[1]"), ("broken", '{"secret-1'), ("none", None), (None, "{}")]
    found = collected(run_task(spark.createDataFrame(rows, "id STRING, data STRING"), Work()))
    assert found["good"][0] == "succeeded"
    for name, reason in {
        "array": "the column data is refused: a JSON object was expected, not an array",
        "broken": "the column data is refused: not UTF-8 JSON: Input data was truncated",
        "none": "the column data is null",
        None: "the column id is null",
    }.items():
        assert found[name] == ("failed", None, "BUSINESS", 0, reason)


def test_a_result_that_is_not_json_is_no_success(spark: SparkSession) -> None:
    found = collected(run_task(frame(spark, {"odd": {"result": "a set"}}), Work()))
    status, result, category, attempts, error = found["odd"]
    assert (status, result, category, attempts) == ("failed", None, "SYSTEM", 1)
    assert error.startswith("the result of transaction odd is not JSON: ")


def test_errors_are_redacted_by_the_task(spark: SparkSession) -> None:
    payloads: dict[str, dict[str, Any]] = {"x": {"card": "hunter2"}, "y": {"card": "hunter2", "refuse": True}}
    found = collected(run_task(frame(spark, payloads), Careless()))
    assert [found[name][2] for name in "xy"] == ["SYSTEM", "BUSINESS"]
    assert "hunter2" not in str(found)


def test_one_id_twice_gives_two_rows(spark: SparkSession) -> None:
    rows = spark.createDataFrame([("a", '{"result":1}'), ("a", '{"result":2}')], "id STRING, data STRING")
    assert sorted(row.result for row in run_task(rows.coalesce(1), Work(), POLICY).collect()) == ["1", "2"]


def test_ids_of_other_types_and_other_columns(spark: SparkSession) -> None:
    rows = spark.range(3).selectExpr("id", """'{"result":true}' AS data""", "rand() AS noise")
    assert collected(run_task(rows, Work())) == {
        str(n): ("succeeded", "true", None, 1, None) for n in range(3)
    }


def test_concurrency_holds_in_each_partition(spark: SparkSession) -> None:
    rows = frame(spark, {f"{n}": {"sleep": 0.5} for n in range(16)}).coalesce(1)
    policy = ConsumerPolicy(ConsumerLoopPolicy(concurrency=ConcurrencyPolicy(16)))
    begin = time.monotonic()
    assert run_task(rows, Work(), policy).where("status = 'succeeded'").count() == 16
    assert time.monotonic() - begin < 7  # one after the other, they take 8 s


def test_the_loops_timeout_leaves_the_rest_unsettled(spark: SparkSession) -> None:
    rows = frame(spark, {f"{n}": {"sleep": 0.2} for n in range(20)}).coalesce(1)
    policy = replace(ConsumerPolicy(), loop=ConsumerLoopPolicy(timeout=0.7))
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 5)
    try:
        found = run_task(rows, Work(), policy).collect()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert len(found) == 20  # a row for every row, in any batch
    assert {row.status for row in found} == {"succeeded", "unsettled"}
    assert sum(row.status == "unsettled" for row in found) >= 15
    assert "not begun: the loop's timeout came first" in {row.error for row in found}


def test_in_a_streaming_query(spark: SparkSession, tmp_path: Any) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1").write_text('{"result":1}\n{"refuse":true}\n')
    lines = spark.readStream.text(str(tmp_path / "in")).selectExpr("sha1(value) AS id", "value AS data")
    writer = run_task(lines, Work()).writeStream.format("parquet").trigger(availableNow=True)
    writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start(
        str(tmp_path / "out")
    ).awaitTermination()
    found = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(row.status for row in found) == ["failed", "succeeded"]


def test_refused(spark: SparkSession) -> None:
    rows = frame(spark, {"a": {}})
    with pytest.raises(TaskConfigError, match="needs a ConsumerTask or an AsyncConsumerTask, not str"):
        run_task(rows, "task")  # type: ignore[arg-type]
    with pytest.raises(TaskConfigError, match="there is no data"):
        run_task(rows.drop("data"), Work())
    for loop in (ConsumerLoopPolicy(limit=3), ConsumerLoopPolicy(streaming=True)):
        with pytest.raises(PolicyError, match="makes no sense on Spark"):
            run_task(rows, Work(), ConsumerPolicy(loop))


def test_a_task_made_in_the_program_itself(spark: SparkSession) -> None:
    """Spark ships classes that are in no module, as it does functions."""

    class Doubles(ConsumerTask):
        def __init__(self, factor: int) -> None:
            self.factor = factor

        def process_transaction(self, transaction: Transaction) -> int:
            return int(transaction.payload["n"]) * self.factor

    found = collected(run_task(frame(spark, {"a": {"n": 21}}), Doubles(2)))
    assert found["a"][:2] == ("succeeded", "42")
