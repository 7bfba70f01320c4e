"""Asks platforms, each through a circuit breaker. Failures are returned, not raised."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from conquiet.clock import SYSTEM_CLOCK, Clock, utc
from conquiet.errors import (
    PlatformAuthError,
    PlatformError,
    PlatformRateLimitError,
    ReconcileConfigError,
    redact,
)
from conquiet.local import GLOBAL_CIRCUIT_BREAKER, Pace
from conquiet.observe import RECONCILE_METRICS, SafeLogger
from conquiet.reconcile.platforms.adapter import AdapterRegistry, PlatformAdapter
from conquiet.reconcile.platforms.http import HttpAdapter
from conquiet.reconcile.platforms.simulated import SimulatedAdapter
from conquiet.reconcile.rules import MAX_CLAIM, METRIC_NAMES
from conquiet.reconcile.verdict import Metrics

if TYPE_CHECKING:
    from conquiet.coordination import SharedState

__all__ = ["ADAPTERS", "NOTHING", "Breaker", "Breakers", "FetchError", "FetchOutcome", "PlatformFetcher"]

_log = SafeLogger("conquiet.reconcile")

ADAPTERS = AdapterRegistry({"simulated": SimulatedAdapter, "http": HttpAdapter})
NOTHING = Metrics(None, None, None)


class FetchError(StrEnum):
    """Why a platform gave no answer."""

    FETCH_ERROR = "fetch_error"
    RATE_LIMITED = "rate_limited"
    AUTH_ERROR = "auth_error"
    CIRCUIT_OPEN = "circuit_open"


class FetchOutcome(NamedTuple):
    """The outcome of asking a platform. Without `error_code` it answered, possibly without numbers."""

    metrics: Metrics
    observed_at: datetime
    error_code: FetchError | None = None
    detail: str = ""
    retry_after: float | None = None

    @property
    def may_be_retried(self) -> bool:
        """Whether asking again within the same attempt makes sense."""
        return self.error_code in (FetchError.FETCH_ERROR, FetchError.RATE_LIMITED)


class Breaker(Protocol):
    def allow(self) -> bool: ...
    def record_success(self) -> None: ...
    def record_failure(self, rate_limited: bool = ...) -> None: ...


class Breakers(Protocol):
    def for_platform(self, name: str) -> Breaker: ...


class PlatformFetcher:
    """Fetches from the platforms it was given adapters for. Each has a breaker; `fetch` never raises for a platform.

    `pace` spaces the calls to platforms that ask for fewer (`delay_for`); without one it is kept in this process.
    """

    def __init__(
        self,
        adapters: Mapping[str, PlatformAdapter],
        *,
        breakers: Breakers = GLOBAL_CIRCUIT_BREAKER,
        pace: Pace | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        for platform, adapter in adapters.items():
            if not isinstance(adapter, PlatformAdapter):
                raise ReconcileConfigError(f"platform {platform!r} needs a PlatformAdapter, not {adapter!r}")
        self._adapters = dict(adapters)
        names: list[object] = list(self._adapters)
        if not all(isinstance(name, str) and name.strip() for name in names):
            raise ReconcileConfigError("the name of a platform must be a text that is not empty")
        self._breakers = breakers
        self._own_pace = pace
        self._pace = pace or Pace(clock=clock)
        self._clock = clock

    @classmethod
    def from_settings(
        cls,
        settings: Mapping[str, Mapping[str, Any]],
        *,
        registry: AdapterRegistry = ADAPTERS,
        breakers: Breakers = GLOBAL_CIRCUIT_BREAKER,
        pace: Pace | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> PlatformFetcher:
        """Create from settings: `{"instagram": {"adapter": "http", "base_url": …}, …}`; only registered adapters."""
        adapters = {}
        for platform, own in settings.items():
            rest = {name: value for name, value in own.items() if name != "adapter"}
            adapters[platform] = registry.create(str(own.get("adapter")), rest)
        return cls(adapters, breakers=breakers, pace=pace, clock=clock)

    def sharing(self, state: SharedState) -> PlatformFetcher:
        """Return this fetcher with breakers and pace shared through Redis, except where it was given its own."""
        from conquiet.coordination import SharedBreakerRegistry, SharedPace

        is_default = self._breakers is GLOBAL_CIRCUIT_BREAKER
        breakers = SharedBreakerRegistry(state) if is_default else self._breakers
        pace = self._own_pace or SharedPace(state)
        return type(self)(self._adapters, breakers=breakers, pace=pace, clock=self._clock)

    @property
    def platforms(self) -> tuple[str, ...]:
        return tuple(sorted(self._adapters))

    def delay_for(self, platform: str) -> float:
        """Return 0 if `fetch` may be called now: it should then be. Otherwise the seconds to wait before.

        A delay follows from a platform that asked for fewer calls. It decreases with each of its answers.
        """
        return self._pace.wait_for(platform) if platform in self._adapters else 0.0

    def fetch(self, platform: str, post_id: str) -> FetchOutcome:
        """Ask the platform for a post, unless its breaker forbids it."""
        adapter = self._adapters.get(platform)
        if adapter is None:
            # No breaker is created, so that invented names do not fill the registry.
            known = ", ".join(self.platforms) or "none"
            return self._failed(
                FetchError.FETCH_ERROR, f"there is no adapter for this platform; known platforms are: {known}"
            )
        breaker = self._breakers.for_platform(platform)
        if not breaker.allow():
            RECONCILE_METRICS.fetched(platform, FetchError.CIRCUIT_OPEN)
            return self._failed(
                FetchError.CIRCUIT_OPEN, f"{platform} failed too often: it is not asked for now"
            )
        outcome = self._ask(adapter, platform, post_id)
        if outcome.error_code is None:
            breaker.record_success()
            self._pace.answered(platform)
        else:
            is_limited = outcome.error_code is FetchError.RATE_LIMITED
            breaker.record_failure(rate_limited=is_limited)
            if is_limited:
                wait = self._pace.asked(platform, outcome.retry_after)
                outcome = outcome._replace(retry_after=wait)
        RECONCILE_METRICS.fetched(platform, outcome.error_code or "ok")
        return outcome

    def _ask(self, adapter: PlatformAdapter, platform: str, post_id: str) -> FetchOutcome:
        try:
            metrics, observed_at = adapter.fetch(post_id)
            _check(metrics, observed_at)
        except PlatformRateLimitError as error:
            return self._failed(FetchError.RATE_LIMITED, str(error), error.retry_after)
        except PlatformAuthError as error:
            return self._failed(FetchError.AUTH_ERROR, str(error))
        except PlatformError as error:
            return self._failed(FetchError.FETCH_ERROR, str(error))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - one platform's adapter must not fail the worker
            # A bug in the adapter. For the report it means missing data; it is logged as an error.
            _log.exception("the adapter of %s raised an exception that adapters must not raise", platform)
            return self._failed(FetchError.FETCH_ERROR, f"the adapter raised {type(error).__qualname__}")
        return FetchOutcome(metrics, observed_at or self._now())

    def _failed(self, code: FetchError, detail: str, retry_after: float | None = None) -> FetchOutcome:
        # Storable in every database: no NUL, no lone surrogates, limited in length; and no passwords.
        text = redact(detail)[:1_024].replace("\0", "").encode("utf-8", "replace").decode()
        return FetchOutcome(NOTHING, self._now(), code, text, retry_after)

    def _now(self) -> datetime:
        return utc(self._clock.time())


def _check(metrics: Metrics, observed_at: datetime | None) -> None:
    """Check what a user's adapter returns before it reaches the verdict and the database."""
    for name, value in zip(METRIC_NAMES, metrics, strict=True):
        if value is not None and (type(value) is not int or not 0 <= value <= MAX_CLAIM):
            raise PlatformError(f"the adapter returned {name} that are not a count")
    if observed_at is None:
        return
    if observed_at.tzinfo is None:
        raise PlatformError("the adapter returned an observed_at without a zone")
    # Times at the ends of the calendar cannot be converted to other zones and are not real observations.
    if not 1 < observed_at.year < 9999:
        raise PlatformError("the adapter returned an observed_at whose year is out of range")
