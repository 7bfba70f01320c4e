"""Progress of Spark queries, on the terminal and as metrics."""

from conquiet.spark.progress.counts import BATCH_COUNTS, ROWS, WAIT_SECONDS, CountedFrame, Counts, Tally
from conquiet.spark.progress.listener import ProgressListener, add_counts, show_progress, silence_bar
from conquiet.spark.progress.view import QueryState, View, stderr_view

__all__ = [
    "BATCH_COUNTS",
    "ROWS",
    "WAIT_SECONDS",
    "CountedFrame",
    "Counts",
    "ProgressListener",
    "QueryState",
    "Tally",
    "View",
    "add_counts",
    "show_progress",
    "silence_bar",
    "stderr_view",
]
