"""Base classes for consumer tasks: subclass one and implement `process_transaction`."""

from __future__ import annotations

from typing import Any

from conquiet.task.lifecycle import empty
from conquiet.task.mixins.consumer import AsyncConsumerMixin, ConsumerMixin
from conquiet.task.transaction import Transaction

__all__ = ["AsyncConsumerTask", "ConsumerTask"]


class ConsumerTask(ConsumerMixin):
    """A consumer task on threads."""


class AsyncConsumerTask(AsyncConsumerMixin):
    """A consumer task on asyncio."""

    @empty
    async def process_transaction(self, transaction: Transaction) -> Any:
        raise NotImplementedError

    @empty
    async def handle_transaction_success(self, transaction: Transaction, result: Any) -> None:
        pass

    async def handle_transaction_exception(self, transaction: Transaction, exception: Any) -> None:
        pass
