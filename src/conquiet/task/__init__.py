"""The Consumer Engine: a consumer task defines the work on a transaction, policies how often and for how long."""

from conquiet.task.connector import AsyncConnector, Connector
from conquiet.task.exceptions import (
    ConnectorContractException,
    EngineError,
    ExceptionCategory,
    FetchException,
    FetchTimeoutException,
    SettleException,
    TransactionException,
)
from conquiet.task.failures import guarded, text_of
from conquiet.task.mixins.consumer import AsyncConsumerMixin, ConsumerMixin
from conquiet.task.mixins.policies import (
    BatchPolicy,
    ConcurrencyPolicy,
    ConsumerLoopPolicy,
    ConsumerPolicy,
    ConsumerSteps,
    EmptyQueuePolicy,
    ExceptionPolicy,
    FetchPolicy,
    ProcessPolicy,
    RetryPolicy,
    SuccessPolicy,
)
from conquiet.task.outcome import ConsumeReport, Outcome, OutcomeStatus, StopReason
from conquiet.task.tasks import AsyncConsumerTask, ConsumerTask
from conquiet.task.transaction import Transaction

__all__ = [
    "AsyncConnector",
    "AsyncConsumerMixin",
    "AsyncConsumerTask",
    "BatchPolicy",
    "ConcurrencyPolicy",
    "Connector",
    "ConnectorContractException",
    "ConsumeReport",
    "ConsumerLoopPolicy",
    "ConsumerMixin",
    "ConsumerPolicy",
    "ConsumerSteps",
    "ConsumerTask",
    "EmptyQueuePolicy",
    "EngineError",
    "ExceptionCategory",
    "ExceptionPolicy",
    "FetchException",
    "FetchPolicy",
    "FetchTimeoutException",
    "Outcome",
    "OutcomeStatus",
    "ProcessPolicy",
    "RetryPolicy",
    "SettleException",
    "StopReason",
    "SuccessPolicy",
    "Transaction",
    "TransactionException",
    "guarded",
    "text_of",
]
