"""The contract of platform adapters, and the registry that is their only source.

A name in a report or a configuration is looked up in a table of classes that is filled by code; it is never imported,
resolved or executed. Unknown names are refused.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from conquiet.errors import ReconcileConfigError
from conquiet.reconcile.verdict import Metrics

__all__ = ["AdapterRegistry", "Observation", "PlatformAdapter"]


class Observation(NamedTuple):
    """A platform's numbers. `observed_at` is when it counted them or, if it does not tell, when it answered."""

    metrics: Metrics
    observed_at: datetime | None = None


class PlatformAdapter(ABC):
    """Asks one platform once, without retries or breaker. Several threads use it at the same time."""

    @abstractmethod
    def fetch(self, post_id: str) -> Observation:
        """Return the numbers of a post. A post that the platform does not know has none.

        Raises `PlatformRateLimitError`, `PlatformAuthError`, or `PlatformError` for anything else that prevents it.
        """


class AdapterRegistry:
    """Adapter classes by the name that configurations use."""

    def __init__(self, classes: Mapping[str, type[PlatformAdapter]] | None = None) -> None:
        self._classes: dict[str, type[PlatformAdapter]] = {}
        for name, adapter_class in (classes or {}).items():
            self.register(name, adapter_class)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._classes))

    def register(self, name: str, adapter_class: type[PlatformAdapter]) -> None:
        """Register a class under `name`. A string instead of a class is refused: nothing is imported by name."""
        given: object = adapter_class
        if not (isinstance(given, type) and issubclass(given, PlatformAdapter)):
            raise ReconcileConfigError(
                f"adapter {name!r} must be a subclass of PlatformAdapter, not {adapter_class!r}"
            )
        if self._classes.setdefault(name, adapter_class) is not adapter_class:
            raise ReconcileConfigError(f"an adapter named {name!r} is already registered")

    def create(self, name: str, settings: Mapping[str, Any]) -> PlatformAdapter:
        """Create an adapter of the class registered under `name`."""
        adapter_class = self._classes.get(name)
        if adapter_class is None:
            raise ReconcileConfigError(
                f"there is no adapter {name!r}; registered are: {', '.join(self.names) or 'none'}"
            )
        try:
            return adapter_class(**settings)
        except TypeError as error:  # an unknown setting, or a missing one; values are not shown
            raise ReconcileConfigError(f"the settings of adapter {name!r} do not fit: {error}") from error
