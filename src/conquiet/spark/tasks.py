"""Runs a Consumer Engine task on Spark's executors: each row in gives an outcome row."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.functions import col
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from conquiet.clock import SYSTEM_CLOCK
from conquiet.connectors import AsyncIterableConnector, IterableConnector
from conquiet.errors import PayloadError, PolicyError, TaskConfigError
from conquiet.payload import decode, encode
from conquiet.task import (
    AsyncConsumerMixin,
    ConsumerMixin,
    ConsumerPolicy,
    ExceptionCategory,
    Outcome,
    OutcomeStatus,
    Transaction,
    guarded,
    text_of,
)

__all__ = ["OUTCOME_SCHEMA", "run_task"]

OUTCOME_SCHEMA = StructType(
    [
        StructField("id", StringType()),
        StructField("status", StringType(), nullable=False),  # succeeded, failed, unsettled
        StructField("result", StringType()),  # JSON
        StructField("category", StringType()),  # BUSINESS, SYSTEM, TIMEOUT
        StructField("attempts", IntegerType(), nullable=False),  # calls of process; 0: not begun
        StructField("error", StringType()),
    ]
)
_ARROW = pa.schema(
    [
        (field.name, pa.int32() if isinstance(field.dataType, IntegerType) else pa.string())
        for field in OUTCOME_SCHEMA
    ]
)

_POLICY = ConsumerPolicy()
Row = tuple[str | None, str, str | None, str | None, int, str | None]


def run_task(
    df: DataFrame, task: ConsumerMixin | AsyncConsumerMixin, policy: ConsumerPolicy = _POLICY
) -> DataFrame:
    """Run `task` on the executors for every row of `df` (columns `id` and `data`, a JSON object). Each row gives a row
    of `OUTCOME_SCHEMA`.

    Spark sends a copy of `task` to every executor and runs it again when it repeats a partition. `policy.loop` applies
    to each partition separately: concurrency, timeouts, the limit on abandoned threads.
    """
    if not isinstance(task, ConsumerMixin | AsyncConsumerMixin):
        raise TaskConfigError(
            f"run_task needs a ConsumerTask or an AsyncConsumerTask, not {type(task).__name__}"
        )
    for name in ("limit", "streaming"):
        if getattr(policy.loop, name):
            raise PolicyError(
                f"ConsumerLoopPolicy.{name} makes no sense on Spark, where a DataFrame determines the work: use "
                "df.limit(…), or a streaming DataFrame"
            )
    missing = [name for name in ("id", "data") if name not in df.columns]
    if missing:
        raise TaskConfigError(
            f"run_task needs the columns id and data; there is no {' and no '.join(missing)}"
        )
    text = policy.to_json()
    rows = df.select(col("id").cast("string"), col("data").cast("string"))
    return rows.mapInArrow(lambda batches: _outcomes(task, text, batches), OUTCOME_SCHEMA)


def _outcomes(
    task: ConsumerMixin | AsyncConsumerMixin, policy_text: str, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the outcomes of one partition, an Arrow batch at a time, so that memory stays bounded."""
    policy = ConsumerPolicy.from_json(policy_text)
    redact = guarded(task.redact)
    begun = SYSTEM_CLOCK.monotonic()
    for batch in batches:
        rows = _Rows(batch, redact)
        left = None
        if policy.loop.timeout is not None:
            left = policy.loop.timeout - (SYSTEM_CLOCK.monotonic() - begun)
        if left is None or left > 0:
            _consume(task, replace(policy, loop=replace(policy.loop, timeout=left)), rows)
        yield rows.to_arrow()


def _consume(task: ConsumerMixin | AsyncConsumerMixin, policy: ConsumerPolicy, rows: _Rows) -> None:
    if isinstance(task, ConsumerMixin):
        task.consume_transactions(IterableConnector(rows.transactions()), policy, on_outcome=rows.ended)
    else:
        connector = AsyncIterableConnector(rows.transactions())
        asyncio.run(task.consume_transactions(connector, policy, on_outcome=rows.ended))


class _Rows:
    """The rows of one Arrow batch and their outcomes."""

    def __init__(self, batch: pa.RecordBatch, redact: Callable[[str], str]) -> None:
        self._ids: list[str | None] = batch.column("id").to_pylist()
        self._data: list[str | None] = batch.column("data").to_pylist()
        self._redact = redact
        self._ends: list[Row | None] = [None] * len(self._ids)

    def transactions(self) -> Iterator[Transaction]:
        """Yield a transaction for each valid row; the others fail here, with the reason."""
        for place, (row_id, data) in enumerate(zip(self._ids, self._data, strict=True)):
            if row_id is None or data is None:
                self._refuse(place, f"the column {'id' if row_id is None else 'data'} is null")
                continue
            try:
                payload = decode(data)
            except PayloadError as error:
                self._refuse(place, f"the column data is refused: {error}")
            else:
                yield Transaction(row_id, payload, {"row": place})

    def _refuse(self, place: int, reason: str) -> None:
        self._end(place, OutcomeStatus.FAILED, ExceptionCategory.BUSINESS, 0, reason)

    def ended(self, outcome: Outcome) -> None:
        assert outcome.transaction is not None
        place = outcome.transaction.metadata["row"]
        error = None if outcome.exception is None else self._redact(text_of(outcome.exception))
        result = None
        if outcome.status is OutcomeStatus.SUCCEEDED and outcome.result is not None:
            try:
                result = _json(outcome.result)
            except PayloadError as refusal:
                # The work is done but its result is lost, so it must not count as a success.
                said = f"the result of transaction {outcome.transaction_id} is not JSON: {refusal}"
                self._end(place, OutcomeStatus.FAILED, ExceptionCategory.SYSTEM, outcome.attempts, said)
                return
        self._end(place, outcome.status, outcome.category, outcome.attempts, error, result)

    def to_arrow(self) -> pa.RecordBatch:
        """Return an outcome for every row; rows that the loop did not reach are unsettled."""
        unsettled = (OutcomeStatus.UNSETTLED.value, None, None, 0, "not begun: the loop's timeout came first")
        ends = [end or (row_id, *unsettled) for row_id, end in zip(self._ids, self._ends, strict=True)]
        columns = list(zip(*ends, strict=True)) or [()] * len(_ARROW)
        return pa.record_batch(
            [pa.array(list(column), kind) for column, kind in zip(columns, _ARROW.types, strict=True)],
            schema=_ARROW,
        )

    def _end(
        self,
        place: int,
        status: OutcomeStatus,
        category: ExceptionCategory | None,
        attempts: int,
        error: str | None,
        result: str | None = None,
    ) -> None:
        name = None if category is None else category.value
        self._ends[place] = (self._ids[place], status.value, result, name, attempts, error)


def _json(result: Any) -> str:
    """Encode a JSON value of any kind, by the rules for payloads (which are objects)."""
    return encode({"": result})[len('{"":') : -1].decode()
