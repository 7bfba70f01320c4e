"""What Spark is doing, on the terminal and as metrics."""

from conquiet.spark.progress.figures import RECENT, ROWS, WAIT_SECONDS, CountedFrame, Figures
from conquiet.spark.progress.queries import ProgressListener, count_figures, show_progress, silence_bar
from conquiet.spark.progress.view import QueryState, View, stderr_view

__all__ = [
    "RECENT",
    "ROWS",
    "WAIT_SECONDS",
    "CountedFrame",
    "Figures",
    "ProgressListener",
    "QueryState",
    "View",
    "count_figures",
    "show_progress",
    "silence_bar",
    "stderr_view",
]
