"""Connectors: the sources of transactions for the Consumer Engine, for threads and for asyncio.

The modules are imported at first use, so that each needs only its own extra.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conquiet.connectors.iterable import AsyncIterableConnector, IterableConnector
    from conquiet.connectors.jobs import AsyncJobConnector, JobConnector
    from conquiet.connectors.local import AsyncLocalQueueConnector, LocalQueueConnector
    from conquiet.connectors.streams import AsyncStreamConnector, StreamConnector

__all__ = [
    "AsyncIterableConnector",
    "AsyncJobConnector",
    "AsyncLocalQueueConnector",
    "AsyncStreamConnector",
    "IterableConnector",
    "JobConnector",
    "LocalQueueConnector",
    "StreamConnector",
]

_MODULES = {"Iterable": "iterable", "Job": "jobs", "LocalQueue": "local", "Stream": "streams"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _MODULES[name.removeprefix("Async").removesuffix("Connector")]
    return getattr(import_module(f"conquiet.connectors.{module}"), name)
