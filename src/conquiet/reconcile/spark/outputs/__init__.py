"""Destinations of outputs: Parquet files (`parquet.py`), or tables of a database (`databases.py`, `tables.py`)."""
