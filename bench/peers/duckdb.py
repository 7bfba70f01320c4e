"""DuckDB with its default settings: runs a query once to warm up and once measured. Prints rows and seconds."""

import json
import os
import sys
import time
from importlib.metadata import version

# This file has the name of the package it measures, so its folder must not be on the path.
sys.path.pop(0)

import duckdb

query = os.environ["BENCH_QUERY"]
duckdb.execute("SET TimeZone = 'UTC'")
duckdb.execute(query).fetchall()
begin = time.perf_counter()
rows = duckdb.execute(query).fetchall()
seconds = time.perf_counter() - begin
print(json.dumps({"peer": "duckdb", "version": version("duckdb"), "rows": rows, "seconds": seconds}))
