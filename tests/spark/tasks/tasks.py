"""Tasks that are shipped to executors."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from conquiet.task import AsyncConsumerTask, ConsumerTask, Transaction
from conquiet.task.exceptions import ExceptionCategory, TransactionException


class Work(ConsumerTask):
    """Does what its payload says. It keeps no record of its calls: it runs in many processes."""

    def __init__(self) -> None:
        self.tries: dict[str, int] = {}

    def process_transaction(self, transaction: Transaction) -> Any:
        tries = self.tries[transaction.id] = self.tries.get(transaction.id, 0) + 1
        return _work(transaction.payload, tries)


class AsyncWork(AsyncConsumerTask):
    def __init__(self) -> None:
        self.tries: dict[str, int] = {}

    async def process_transaction(self, transaction: Transaction) -> Any:
        tries = self.tries[transaction.id] = self.tries.get(transaction.id, 0) + 1
        if "sleep" in transaction.payload:
            await asyncio.sleep(transaction.payload["sleep"])
        return _work({**transaction.payload, "sleep": 0}, tries)


def _work(payload: dict[str, Any], tries: int) -> Any:
    time.sleep(payload.get("sleep", 0))
    if payload.get("refuse"):
        raise TransactionException("no such report", ExceptionCategory.BUSINESS)
    if tries <= payload.get("fail", 0):
        raise ConnectionError(f"try {tries} failed")
    if payload.get("result") == "a set":
        return {1, 2}
    return payload.get("result")


class Careless(ConsumerTask):
    """Puts its payload into its errors, and declares that it does."""

    def process_transaction(self, transaction: Transaction) -> Any:
        if transaction.payload.get("refuse"):
            raise TransactionException(f"will not do {transaction.payload}", ExceptionCategory.BUSINESS)
        raise ValueError(f"cannot do {transaction.payload}")

    def redact(self, text: str) -> str:
        return text.partition("{")[0] + "…"
