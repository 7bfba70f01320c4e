"""A Redis stream as a streaming DataFrame: counted by Spark, acknowledged after each micro-batch is committed.

Stop it at any moment, even with `kill -9`, and start it again with the same checkpoint: it continues where it stopped,
and its files contain every message once. It needs Java 17 or newer (`conquiet[java]` includes one).

Prints:

    verified: 600, to be looked at: 400
    pending: 0
"""

from pyspark.sql.functions import col, when

from conquiet.embedded import RedisServer  # a private server for this example; use your own
from conquiet.queue import QueueConfig, RedisStreamsQueue, connect
from conquiet.spark import payload, spark_session


def main(url: str, redis) -> None:
    queue = RedisStreamsQueue(redis, QueueConfig("reports", "verdicts", "producer"))
    queue.enqueue_many(
        [{"report_id": f"r-{n}", "claimed": 100, "seen": 50 + 10 * (n % 5)} for n in range(1_000)]
    )

    spark = spark_session("verdicts")
    reports = (
        spark.readStream.format("conquiet")
        .option("url", url)
        .option("stream", "reports")
        .option("group", "verdicts")
        .option("consumer", "verdicts-query")  # used only by this query, and the same after a restart
        .load()
        .select(payload("report_id STRING, claimed BIGINT, seen BIGINT"))
        .select("payload.*")
    )
    verdict = when(col("seen") * 10 >= col("claimed") * 7, "verified").otherwise("look")
    query = (
        reports.withColumn("verdict", verdict)
        .writeStream.format("parquet")
        .option("checkpointLocation", "checkpoint")
        .trigger(availableNow=True)  # ends after the available messages; without it, the query runs forever
        .start("verdicts")
    )
    query.awaitTermination()

    counts = {
        row.verdict: row["count"]
        for row in spark.read.parquet("verdicts").groupBy("verdict").count().collect()
    }
    print(f"verified: {counts['verified']}, to be looked at: {counts['look']}")
    print("pending:", queue.backlog_stats().pending)
    spark.stop()


if __name__ == "__main__":
    with RedisServer() as server, connect(server.url) as redis:
        main(server.url, redis)
