"""Mutants of the Spark source and sinks, in runs without Spark on real servers (`on_spark`)."""

from __future__ import annotations

from tests.mutants.mutation import Mutant, mutant

LEDGER = "conquiet.spark.source.ledger:"
KEEPER = "conquiet.spark.source.keeper:Keeper."
READER = "conquiet.spark.source.stream:ConquietStreamReader."
JOURNAL = "conquiet.spark.sink.journal:"
SQLITE = "conquiet.spark.sink.sqlite_staging:"
POSTGRES = "conquiet.spark.sink.postgres_staging:"

SOURCE, STREAM_SINK = "spark source", "spark stream sink"
ON_SQLITE, ON_POSTGRES = "spark jobs on SQLite", "spark jobs on PostgreSQL"

MUTANTS: list[Mutant] = [
    # -- the source
    mutant(
        "Spark source: known by its consumer's name",
        SOURCE,
        ("lost",),
        (f"{READER}_ledger_of", "self.make_ledger(query)", "self.make_ledger(self.options.consumer)"),
    ),
    mutant(
        "Spark source: acknowledged when it runs",
        SOURCE,
        ("acknowledged-early",),
        (
            f"{READER}partitions",
            "keeper.run(blocks, self._bound)",
            "keeper.run(blocks, self._bound)\n    keeper.commit(blocks)\n    keeper.settle()",
        ),
    ),
    mutant(
        "Spark source: the last batch is not settled",
        SOURCE,
        ("left-pending",),
        (f"{READER}latestOffset", "keeper.settle()", "pass"),
        (f"{KEEPER}_step", "self._settle_one()", "self._committed.clear()"),
    ),
    mutant(
        "Spark source: everything held counts as committed",
        SOURCE,
        ("lost",),
        (f"{KEEPER}commit", "while block != blocks[-1]:", "while self._held:"),
    ),
    mutant(
        "Spark source: the first batch is made anew",
        SOURCE,
        ("other-rows", "lost", "doubled"),
        (f"{KEEPER}_recorded_first", "self._first = self._ledger.first()", "pass"),
        (
            f"{KEEPER}first_batch",
            "self._ledger.record_first(self._filled(limit, bound))",
            "tuple(self._filled(limit, bound))",
        ),
    ),
    mutant(
        "Spark source: a claim is not in the ledger",
        SOURCE,
        ("lost",),
        (f"{LEDGER}CLAIM", "redis.call('RPUSH', KEYS[2], lo .. ',' .. hi .. ',' .. n)", ""),
    ),
    mutant(
        "Spark source: claimed ahead of the bound",
        SOURCE,
        ("claimed-early",),
        (f"{KEEPER}run", "self._bound = bound", "pass"),
    ),
    mutant(
        "Spark source: the lease of a running query is no obstacle",
        SOURCE,
        ("two-holders",),
        (f"{LEDGER}OPEN", "if holder and holder ~= ARGV[1] then", "if false then"),
    ),
    mutant(
        "Spark source: a renewed lease is waited for",
        SOURCE,
        ("two-holders",),
        (f"{LEDGER}Ledger._when_free", "holder == seen and left > before", "holder == seen and left < 0"),
    ),
    mutant(
        "Spark source: a replaced query goes on",
        SOURCE,
        ("two-holders",),
        (f"{LEDGER}CLAIM", "redis.call('HGET', KEYS[3], 'token') ~= ARGV[1]", "false"),
    ),
    mutant(
        "Spark source: a trimmed entry is not counted",
        SOURCE,
        ("loss",),
        (f"{LEDGER}CLAIM", "math.max(0, added - read - length)", "0"),
    ),
    mutant(
        "Spark source: no heartbeat",
        SOURCE,
        ("left-stale",),
        (f"{KEEPER}_step", "deque([*self._committed, *self._held])", "deque(self._committed)"),
    ),
    mutant(
        "Spark source: a heartbeat takes from everybody",
        SOURCE,
        ("two-holders",),
        (f"{LEDGER}REFRESH", "ARGV[7], ARGV[9])", "ARGV[7])"),
    ),
    # -- the stream sink
    mutant(
        "Spark stream sink: a batch that is known is published again",
        STREAM_SINK,
        ("doubled",),
        (f"{JOURNAL}_BEGIN", "tonumber(batch) >= tonumber(ARGV[1])", "tonumber(batch) > tonumber(ARGV[1])"),
    ),
    mutant(
        "Spark stream sink: an earlier batch is published again",
        STREAM_SINK,
        ("doubled",),
        (f"{JOURNAL}_BEGIN", "tonumber(batch) >= tonumber(ARGV[1])", "tonumber(batch) == tonumber(ARGV[1])"),
    ),
    mutant(
        "Spark stream sink: a chunk is published and stays",
        STREAM_SINK,
        ("doubled", "lost"),
        (f"{JOURNAL}_STEP", "call('LPOP', KEYS[3])", ""),
    ),
    mutant(
        "Spark stream sink: the last chunk of a list is forgotten",
        STREAM_SINK,
        ("lost",),
        (f"{JOURNAL}_STEP", "if tonumber(left) > 1 then", "if tonumber(left) > 2 then"),
    ),
    mutant(
        "Spark stream sink: missing rows are not noticed",
        STREAM_SINK,
        ("loss",),
        (f"{JOURNAL}_BEGIN", "redis.call('LLEN', KEYS[i]) ~= tonumber(ARGV[i + 1])", "false"),
        (
            f"{JOURNAL}_STEP",
            "if not chunk then return redis",
            "if not chunk then return 0 end\nif false then return redis",
        ),
        (
            f"{JOURNAL}Journal.finish",
            "while self.step(batch, at, staging):\n            pass",
            "if not self.step(batch, at, staging): return 0",
        ),
    ),
    # -- the job sinks
    mutant(
        "Spark jobs, SQLite: a batch that is known is published again",
        ON_SQLITE,
        ("doubled",),
        (f"{SQLITE}_JOURNAL", "known.batch < excluded.batch", "known.batch <= excluded.batch"),
    ),
    mutant(
        "Spark jobs, SQLite: an earlier batch is published again",
        ON_SQLITE,
        ("doubled",),
        (f"{SQLITE}_JOURNAL", "known.batch < excluded.batch", "known.batch <> excluded.batch"),
    ),
    mutant(
        "Spark jobs, SQLite: missing rows are not noticed",
        ON_SQLITE,
        ("loss",),
        (f"{SQLITE}SqliteStaging.publish", "if found != rows:", "if found > rows:"),
    ),
    mutant(
        "Spark jobs, SQLite: a later batch's rows are removed",
        ON_SQLITE,
        ("left-staged",),
        (f"{SQLITE}_REMOVE_OVER", "batch <= :batch", "batch <> :batch - 1"),
    ),
    mutant(
        "Spark jobs, PostgreSQL: a batch that is known is published again",
        ON_POSTGRES,
        ("doubled",),
        (f"{POSTGRES}_JOURNAL", "known.batch < excluded.batch", "known.batch <= excluded.batch"),
    ),
    mutant(
        "Spark jobs, PostgreSQL: an earlier batch is published again",
        ON_POSTGRES,
        ("doubled",),
        (f"{POSTGRES}_JOURNAL", "known.batch < excluded.batch", "known.batch <> excluded.batch"),
    ),
    mutant(
        "Spark jobs, PostgreSQL: missing rows are not noticed",
        ON_POSTGRES,
        ("loss",),
        (f"{POSTGRES}PostgresStaging.publish", "if found != rows:", "if found > rows:"),
    ),
    mutant(
        "Spark jobs, PostgreSQL: the staging table is emptied for all",
        ON_POSTGRES,
        ("left-staged",),
        (
            f"{POSTGRES}_OTHERS",
            "attempt <> ALL(%(attempts)s::bigint[])",
            "attempt < 0 AND attempt <> ALL(%(attempts)s::bigint[])",
        ),
    ),
]
