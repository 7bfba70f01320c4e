"""A Consumer Engine task, unchanged, on Spark's executors: retries, time limits and an outcome for every row.

The task calls a service that fails sometimes. A BUSINESS failure is final; all others are retried according to the
policy. The same class runs without Spark: `Score().consume_transactions(connector, policy)`.

Prints:

    r-1 succeeded {"score":0.25} after 1 attempt
    r-2 failed BUSINESS: views cannot be negative
    r-3 succeeded {"score":0.9} after 3 attempts
    r-4 failed BUSINESS: the column data is refused
"""

from conquiet.spark import run_task, spark_session
from conquiet.task import ConsumerTask
from conquiet.task.exceptions import ExceptionCategory, TransactionException
from conquiet.task.mixins.policies import ConsumerPolicy, ConsumerSteps, ProcessPolicy, RetryPolicy


class Score(ConsumerTask):
    failures = 0

    def process_transaction(self, transaction):
        views = transaction.payload["views"]
        if views < 0:
            raise TransactionException("views cannot be negative", ExceptionCategory.BUSINESS)
        if views == 900 and self.failures < 2:
            self.failures += 1
            raise ConnectionError("the service did not answer")
        return {"score": views / 1000}


def main() -> None:
    policy = ConsumerPolicy(
        steps=ConsumerSteps(process=ProcessPolicy(RetryPolicy(max_attempts=3, timeout=10)))
    )
    spark = spark_session("scores")
    rows = [
        ("r-1", '{"views": 250}'),
        ("r-2", '{"views": -1}'),
        ("r-3", '{"views": 900}'),
        ("r-4", "no JSON"),
    ]
    reports = spark.createDataFrame(rows, "id STRING, data STRING")
    for row in sorted(run_task(reports, Score(), policy).collect()):
        if row.status == "succeeded":
            print(row.id, row.status, row.result, "after", row.attempts, "attempt" + "s" * (row.attempts > 1))
        else:
            print(row.id, row.status, f"{row.category}: {row.error.split(':')[0]}")
    spark.stop()


if __name__ == "__main__":
    main()
