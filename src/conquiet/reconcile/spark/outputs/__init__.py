"""Where outputs go: Parquet files (`parquet.py`), or tables of a database (`databases.py`, `tables.py`)."""
