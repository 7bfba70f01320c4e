"""The Consumer Engine: tasks say what is to be done with a transaction, policies how often and for how long."""

from conquiet.task.connector import AsyncConnector, Connector
from conquiet.task.outcome import ConsumeReport, Outcome, OutcomeStatus, StopReason
from conquiet.task.tasks import AsyncConsumerTask, ConsumerTask
from conquiet.task.transaction import Transaction

__all__ = [
    "AsyncConnector",
    "AsyncConsumerTask",
    "Connector",
    "ConsumeReport",
    "ConsumerTask",
    "Outcome",
    "OutcomeStatus",
    "StopReason",
    "Transaction",
]
