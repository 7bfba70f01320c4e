"""What happens to the attempts of a worker, told to those who listen: the log and the metrics."""

from conquiet.jobs.worker.events.attempts import AttemptEvents
from conquiet.jobs.worker.events.listener import AttemptListener
from conquiet.jobs.worker.events.log import AttemptLog
from conquiet.jobs.worker.events.metrics import AttemptMetrics

__all__ = ["AttemptEvents", "AttemptListener", "AttemptLog", "AttemptMetrics"]
