"""Redis clients for this queue, without the client's own retries."""

from __future__ import annotations

from typing import Any

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from conquiet.errors import AccessProblem, QueueConfigError, QueueConnectionError, redact
from conquiet.redaction import impossible_host, impossible_text, redact_dsn

__all__ = ["connect", "connect_async"]

_SOCKET_SECONDS = 5.0


def connect(url: str, **options: Any) -> redis.Redis:
    """Return a client for `url` (redis://, rediss:// for TLS, unix://) that retries nothing.

    `options` go to redis-py (`ssl_ca_certs`, `socket_timeout`, …). The socket timeout, 5 s by default, never
    ends a blocking read: the queue waits `block_ms` and 5 s more for its answer.
    """
    client: redis.Redis = _connect(redis.Redis, url, Retry(NoBackoff(), 0), options)
    return client


def connect_async(url: str, **options: Any) -> redis.asyncio.Redis:
    """Like `connect`, for asyncio."""
    client: redis.asyncio.Redis = _connect(redis.asyncio.Redis, url, AsyncRetry(NoBackoff(), 0), options)
    return client


def _connect(client: Any, url: str, no_retry: Any, options: dict[str, Any]) -> Any:
    settings = {
        "socket_timeout": _SOCKET_SECONDS,
        "socket_connect_timeout": _SOCKET_SECONDS,
        **options,
        "retry": no_retry,
        "retry_on_error": [],
    }
    try:
        made = client.from_url(url, **settings)
        given = made.connection_pool.connection_kwargs
        if impossible_text(url) or impossible_text(given.get("path", "")):
            raise ValueError("it has a NUL or half a surrogate pair in it")
        if impossible_host(given.get("host", "")):
            raise ValueError("no host can have that name: the parts between its dots have 1 to 63 characters")
        # Creates a connection object without connecting: unknown options fail now, not at the first command.
        made.connection_pool.connection_class(**given)
        return made
    except (ValueError, TypeError, AttributeError) as error:
        raise QueueConfigError(
            f"{_told(str(url), error)}; "
            "expected redis://[user:password@]host:port/db, rediss://… for TLS, or unix://path",
            problem=AccessProblem.ADDRESS,
        ) from None
    except OSError as error:  # an error of this machine, for example no file descriptors left
        raise QueueConnectionError(f"no client can be created: {redact(str(error))}") from error


def _told(url: str, error: Exception) -> str:
    """Describe what is wrong with `url`. An unparsable URL may have a password anywhere before its last @, and the
    parser's error may quote part of it; in that case neither is shown."""
    if "@" not in url or "unexpected keyword argument" in str(error):
        return f"{redact_dsn(url)!r} is not a usable Redis URL ({redact(str(error))})"
    shown = "…@" + redact(url.rpartition("@")[2].partition("?")[0])
    return f"{shown!r} is not a usable Redis URL (in a password, write %2F for /, %23 for # and %40 for @)"
