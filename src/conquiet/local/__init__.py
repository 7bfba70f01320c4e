"""Work inside one process: a queue with priorities and delays, worker threads, and circuit breakers."""

from conquiet.errors import (
    LocalConfigError,
    LocalQueueError,
    QueueFullError,
    QueueShutdownError,
    UnknownPriorityError,
)
from conquiet.local.breaker import (
    GLOBAL_CIRCUIT_BREAKER,
    BreakerState,
    CircuitBreaker,
    CircuitBreakerRegistry,
)
from conquiet.local.failures import LAST_EXCEPTIONS
from conquiet.local.item import QueueItem
from conquiet.local.pace import Pace
from conquiet.local.pool import WorkerPool
from conquiet.local.queue import PriorityDelayQueue, QueueSnapshot
from conquiet.local.settings import QUEUE_SETTINGS, QueueSettings
from conquiet.local.worker import Worker

__all__ = [
    "GLOBAL_CIRCUIT_BREAKER",
    "LAST_EXCEPTIONS",
    "QUEUE_SETTINGS",
    "BreakerState",
    "CircuitBreaker",
    "CircuitBreakerRegistry",
    "LocalConfigError",
    "LocalQueueError",
    "Pace",
    "PriorityDelayQueue",
    "QueueFullError",
    "QueueItem",
    "QueueSettings",
    "QueueShutdownError",
    "QueueSnapshot",
    "UnknownPriorityError",
    "Worker",
    "WorkerPool",
]
