"""What several processes know together, through Redis: the states of circuit breakers, rates, and the pace of platforms."""

try:
    import redis as _redis  # noqa: F401
except ImportError as error:
    from conquiet.errors import MissingDependencyError

    raise MissingDependencyError(
        'conquiet.coordination needs the package redis: pip install "conquiet[redis]"'
    ) from error

from conquiet.coordination.breaker import SharedBreaker, SharedBreakerRegistry
from conquiet.coordination.pace import SharedPace
from conquiet.coordination.rate_limit import SharedRateLimiter
from conquiet.coordination.state import SharedState

__all__ = ["SharedBreaker", "SharedBreakerRegistry", "SharedPace", "SharedRateLimiter", "SharedState"]
