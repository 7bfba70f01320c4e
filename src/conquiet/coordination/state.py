"""The connection to the Redis that holds the shared state, and what happens while it is away."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path
from typing import Any

import redis

from conquiet.checks import checked_name, checked_seconds
from conquiet.clock import SYSTEM_CLOCK, Clock
from conquiet.errors import QueueAccessError, QueueConfigError, QueueConnectionError, redact
from conquiet.observe import SafeLogger, SharedStateMetrics
from conquiet.queue import connect

__all__ = ["Script", "SharedState"]

_log = SafeLogger("conquiet.coordination")

# The second pair is what `connect` raises: the client of a cluster asks for its nodes when it is made.
_NO_ANSWER = (redis.RedisError, OSError, QueueConnectionError, QueueAccessError)


class Script:
    """A Lua program, from the file of that name beside this one. It runs in one step and touches one key."""

    def __init__(self, name: str) -> None:
        self.text = Path(__file__).with_name(name).read_text(encoding="utf-8")
        self.digest = hashlib.sha1(self.text.encode()).hexdigest()  # noqa: S324 - the name that Redis gives it


class SharedState:
    """The state that all processes with the same Redis and the same `prefix` share. Thread-safe.

    `server` is a URL as `conquiet.queue.connect` takes it, also of Sentinels or a cluster, or a client. It need not be
    there yet: while Redis does not answer, each process decides by itself. That is logged once, `conquiet_shared_state_away`
    is 1, and once in `retry_seconds` one call tries whether Redis is back, after a failover at the new master. No call waits
    longer than `timeout_seconds` for a server (who looks for a master may ask several), and none is repeated.

    The time is that of the Redis server, so that the clocks of the machines do not matter; a `clock` replaces it in tests.
    """

    def __init__(
        self,
        server: str | redis.Redis | redis.RedisCluster,
        *,
        prefix: str = "conquiet",
        timeout_seconds: float = 0.5,
        retry_seconds: float = 1.0,
        copy_seconds: float = 1.0,
        clock: Clock | None = None,
    ) -> None:
        timeout = checked_seconds("timeout_seconds", timeout_seconds, above_zero=True, error=QueueConfigError)
        self.copy_seconds = checked_seconds("copy_seconds", copy_seconds, error=QueueConfigError)
        self._retry_seconds = checked_seconds("retry_seconds", retry_seconds, error=QueueConfigError)
        self._prefix = checked_name("prefix", prefix, error=QueueConfigError)
        # None and the system's clock mean the server's time.
        self._clock = None if clock is SYSTEM_CLOCK else clock
        self.clock: Clock = clock or SYSTEM_CLOCK
        self._lock = threading.Lock()
        self._away = False
        self._outages = 0
        self._next_try = 0.0
        self._metrics = SharedStateMetrics()
        if not isinstance(server, str | redis.Redis | redis.RedisCluster):
            raise QueueConfigError(
                f"server must be a Redis URL or a synchronous client of redis-py, not {type(server).__qualname__}"
            )
        self._url = server if isinstance(server, str) else None
        self._connect_options = {"socket_timeout": timeout, "socket_connect_timeout": timeout}
        self._client: Any = server if self._url is None else None
        try:
            self._connected()
        except _NO_ANSWER as error:
            self._went(error)

    @property
    def is_away(self) -> bool:
        """Whether Redis did not answer the last call, so that this process decides by itself."""
        return self._away

    @property
    def outages(self) -> int:
        """How often Redis has stopped answering: what a process decides by itself begins anew with each outage."""
        return self._outages

    def run(self, script: Script, kind: str, name: str, *args: object) -> list[Any] | None:
        """Run the script on the key of this name, once, and return its answer; None if Redis is away."""
        if self._away and not self._may_try():
            self._metrics.decided_alone(kind)
            return None
        try:
            client = self._connected()
            # In a cluster all keys are on one node: the state is there or away as a whole, as with one server.
            prefix = f"{{{self._prefix}}}" if isinstance(client, redis.RedisCluster) else self._prefix
            given = (f"{prefix}:{kind}:{name}", self._now(), *args)
            try:
                answer = client.execute_command("EVALSHA", script.digest, 1, *given)
            except redis.exceptions.NoScriptError:  # it has not run: the server was restarted, or is new
                answer = client.execute_command("EVAL", script.text, 1, *given)
        except _NO_ANSWER as error:
            self._went(error)
            self._metrics.decided_alone(kind)
            return None
        if self._away:
            self._came_back()
        return list(answer)

    def close(self) -> None:
        """Close the connections, if this object made them."""
        with self._lock:
            self._away = self._metrics.is_away = False
        if self._url is not None and self._client is not None:
            self._client.close()

    def _connected(self) -> Any:
        """The client; made now if the servers were away when this object was made."""
        if self._client is None and self._url is not None:
            client = connect(self._url, **self._connect_options)
            with self._lock:
                if self._client is None:
                    self._client = client
                    return client
            client.close()  # another thread was faster
        return self._client

    def _now(self) -> str:
        """Microseconds, or nothing: then the script asks the server."""
        return "" if self._clock is None else str(round(self._clock.time() * 1_000_000))

    def _may_try(self) -> bool:
        now = self.clock.monotonic()
        with self._lock:
            if now < self._next_try:
                return False
            self._next_try = now + self._retry_seconds
            return True

    def _went(self, error: Exception) -> None:
        if isinstance(error, redis.exceptions.ReadOnlyError) and hasattr(self._client, "connection_pool"):
            # Its address may lead to another server by now: the idle connections still lead to this one.
            self._client.connection_pool.disconnect(inuse_connections=False)
        with self._lock:
            was_away, self._away = self._away, True
            self._outages += not was_away
            self._next_try = self.clock.monotonic() + self._retry_seconds
        if was_away:
            return
        self._metrics.is_away = True
        _log.warning(
            "the shared state in Redis is not available (%s: %s): until it is, this process decides by itself",
            type(error).__name__,
            redact(str(error)),
            extra={"event": "shared_state_away"},
        )

    def _came_back(self) -> None:
        with self._lock:
            was_away, self._away = self._away, False
        if was_away:
            self._metrics.is_away = False
            _log.info(
                "the shared state in Redis is available again", extra={"event": "shared_state_returned"}
            )
