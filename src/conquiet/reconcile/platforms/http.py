"""A platform over HTTP: one GET per fetch, limits on time and size, no retries and no redirects.

    GET {base_url}?post_id=…        Authorization: Bearer {token}
    200 {"views": 1200, "clicks": 31, "conversions": null, "observed_at": "2026-01-31T12:00:00Z"}

A number that is null or absent was not observed, and `observed_at` may be absent. 404: the platform does not know the
post. 401, 403: our credentials are refused. 429, and 503 with Retry-After: too many calls. Anything else is an error.
"""

from __future__ import annotations

import socket
import threading
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from conquiet.clock import SYSTEM_CLOCK, Clock
from conquiet.errors import (
    PayloadError,
    PlatformAuthError,
    PlatformError,
    PlatformRateLimitError,
    ReconcileConfigError,
)
from conquiet.payload import decode
from conquiet.reconcile.platforms.adapter import Observation, PlatformAdapter
from conquiet.reconcile.rules import MAX_CLAIM, METRIC_NAMES
from conquiet.reconcile.verdict import Metrics
from conquiet.redaction import impossible_host, printable

__all__ = ["HttpAdapter"]

_MAX_BYTES = 1024 * 1024


class HttpAdapter(PlatformAdapter):
    """`timeout_seconds` limits connecting, and then the whole fetch, even if the server sends byte by byte."""

    def __init__(
        self,
        base_url: str,
        *,
        token: str | None = None,
        timeout_seconds: float = 10.0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        try:
            url = urlsplit(base_url)
            port = url.port
            # As in browsers, characters that a request cannot contain are percent-encoded; existing escapes stay.
            path, query = (quote(part, safe="%/?:@!$&'()*+,;=~[]") for part in (url.path, url.query))
        except (ValueError, TypeError, AttributeError):  # the message may quote a password
            raise ReconcileConfigError("base_url is not a URL: its host or port cannot be parsed") from None
        if url.scheme not in ("http", "https") or not url.hostname or impossible_host(url.hostname):
            raise ReconcileConfigError("base_url must be http://… or https://… with a host")
        if url.username is not None or url.password is not None:
            raise ReconcileConfigError("base_url must not contain credentials: pass the token as token=…")
        if token is not None and not (token.isascii() and token.isprintable() and token):
            raise ReconcileConfigError("token must be printable ASCII")  # the token is not shown
        if not timeout_seconds > 0:
            raise ReconcileConfigError(f"timeout_seconds must be above 0, not {timeout_seconds!r}")
        self._connection_class = HTTPSConnection if url.scheme == "https" else HTTPConnection
        self._host = url.hostname
        self._port = port
        self._target = (path or "/") + "?" + (query + "&" if query else "")
        self._headers = {"Accept": "application/json", "Connection": "close"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._timeout = timeout_seconds
        self._clock = clock

    def fetch(self, post_id: str) -> Observation:
        try:
            target = self._target + urlencode({"post_id": post_id})
        except UnicodeEncodeError as error:
            raise PlatformError("the post_id contains a lone surrogate: no platform can have it") from error
        connection = self._connection_class(self._host, self._port, timeout=self._timeout)
        try:
            status, headers, body = self._get(connection, target)
        except TimeoutError as error:
            raise PlatformError(f"{self._host} did not answer within {self._timeout:g} s") from error
        except (OSError, HTTPException) as error:
            raise PlatformError(
                f"{self._host} did not answer properly: {type(error).__name__}: {printable(str(error)[:200])}"
            ) from error
        finally:
            connection.close()
        if status == 404:
            return Observation(Metrics(None, None, None))
        if status == 429 or (status == 503 and "Retry-After" in headers):
            raise PlatformRateLimitError(
                f"{self._host} limits the rate of calls", self._retry_after(headers.get("Retry-After"))
            )
        if status in (401, 403):
            raise PlatformAuthError(f"{self._host} refused our credentials with {status}: check the token")
        if status != 200:
            raise PlatformError(f"{self._host} answered with {status}")
        if len(body) > _MAX_BYTES:
            raise PlatformError(f"{self._host} answered with more than {_MAX_BYTES} bytes")
        return self._parsed(body)

    def _get(self, connection: HTTPConnection, target: str) -> tuple[int, Any, bytes]:
        connection.connect()
        line = connection.sock
        overdue = threading.Event()

        def cut() -> None:  # ends the read in progress
            overdue.set()
            _shut(line)

        # A socket timeout starts again with every byte received.
        watchdog = threading.Timer(self._timeout, cut)
        watchdog.daemon = True
        watchdog.start()
        try:
            connection.request("GET", target, headers=self._headers)
            response: HTTPResponse = connection.getresponse()
            with response:
                body = response.read(_MAX_BYTES + 1)
                answer = response.status, response.headers, body
        except (OSError, HTTPException) as error:
            if overdue.is_set():
                raise TimeoutError from error
            raise
        finally:
            watchdog.cancel()
        if overdue.is_set():
            raise TimeoutError
        return answer

    def _parsed(self, body: bytes) -> Observation:
        try:
            answer = decode(body)
        except PayloadError as error:
            raise PlatformError(f"{self._host} answered with something other than a JSON object") from error
        for name in METRIC_NAMES:
            value = answer.get(name)
            if value is not None and (type(value) is not int or not 0 <= value <= MAX_CLAIM):
                raise PlatformError(f"{self._host} answered with {name} that are not a count")
        observed_at = answer.get("observed_at")
        if observed_at is not None:
            try:
                observed_at = datetime.fromisoformat(observed_at)
            except (TypeError, ValueError) as error:
                raise PlatformError(
                    f"{self._host} answered with an observed_at that is not an ISO 8601 time"
                ) from error
            if observed_at.tzinfo is None:
                raise PlatformError(f"{self._host} answered with an observed_at without a zone")
        return Observation(Metrics(*(answer.get(name) for name in METRIC_NAMES)), observed_at)

    def _retry_after(self, value: str | None) -> float | None:
        if value is None:
            return None
        if value.isascii() and value.isdigit():
            return float(value[:9])
        try:
            moment = parsedate_to_datetime(value)
        except (ValueError, OverflowError):
            return None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return max(0.0, moment.timestamp() - self._clock.time())


def _shut(line: Any) -> None:
    try:
        line.shutdown(socket.SHUT_RDWR)
    except OSError:  # already closed
        pass
