"""The transaction: one unit of work for the engine, wherever it came from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

__all__ = ["Transaction"]


class Transaction(msgspec.Struct, frozen=True, weakref=True):
    """`id` is unique among transactions in flight; `metadata` is the connector's and not shown in spans or logs."""

    id: str
    payload: Any = None
    metadata: Mapping[str, Any] = {}

    def __repr__(self) -> str:  # payload and metadata may hold secrets
        return f"Transaction({self.id!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("id", self.id)]
