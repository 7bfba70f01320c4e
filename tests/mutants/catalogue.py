"""The mutants: typical bugs of queues, each put into the real code at one place."""

from __future__ import annotations

from tests.mutants import of_engine, of_jobs, of_local, of_queue, of_spark, of_sql
from tests.mutants.mutation import Mutant

MUTANTS: list[Mutant] = [
    *of_engine.MUTANTS,
    *of_jobs.MUTANTS,
    *of_local.MUTANTS,
    *of_queue.MUTANTS,
    *of_spark.MUTANTS,
    *of_sql.MUTANTS,
]
