"""The pace of calls to a platform: slower after it asked for fewer calls, and faster again when it no longer asks."""

from __future__ import annotations

import threading
from typing import NamedTuple

from conquiet.checks import checked_seconds
from conquiet.clock import SYSTEM_CLOCK, Clock
from conquiet.errors import LocalConfigError
from conquiet.observe import SafeLogger

__all__ = ["Pace"]

_log = SafeLogger("conquiet.local")


class _Held(NamedTuple):
    spacing: float  # seconds from the begin of one call to the next
    not_before: float  # what the platform asked for
    next_at: float  # when the next call may begin
    booked: float  # the next time that nobody was told yet
    forget_at: float


class Pace:
    """When each platform may be called. Thread-safe; platforms that never ask for fewer calls are not slowed down.

    Ask `wait_for` before each call. Each time a platform asks for fewer calls (`asked`), the calls to it are spaced
    twice as far apart, from `first_seconds` to `longest_seconds`, and none begins before the time it asked for. Each
    answer (`answered`) halves the spacing, until there is none. After `longest_wait_seconds` without a call, it is
    forgotten.
    """

    def __init__(
        self,
        first_seconds: float = 1.0,
        longest_seconds: float = 60.0,
        longest_wait_seconds: float = 3_600.0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.first_seconds, self.longest_seconds, self.longest_wait_seconds = (
            checked_seconds(name, value, above_zero=True, error=LocalConfigError)
            for name, value in (
                ("first_seconds", first_seconds),
                ("longest_seconds", longest_seconds),
                ("longest_wait_seconds", longest_wait_seconds),
            )
        )
        if not self.first_seconds <= self.longest_seconds <= self.longest_wait_seconds:
            raise LocalConfigError(
                "first_seconds must not be above longest_seconds, nor this above longest_wait_seconds: "
                f"{first_seconds:g}, {longest_seconds:g}, {longest_wait_seconds:g}"
            )
        self._clock = clock
        self._lock = threading.Lock()
        self._begin()

    def _begin(self) -> None:
        """Slow nothing down."""
        self._held: dict[str, _Held] = {}

    def wait_for(self, platform: str) -> float:
        """Return 0 if a call may begin now: it must then be made. Otherwise return the seconds to wait.

        Each caller that must wait is told another time, so that they do not all come back at once.
        """
        if platform not in self._held:
            return 0.0
        now = self._clock.monotonic()
        with self._lock:
            held = self._current(platform, now)
            if held is None:
                return 0.0
            if now >= held.next_at:
                next_at = now + held.spacing
                self._held[platform] = held._replace(
                    next_at=next_at, booked=max(held.booked, next_at), forget_at=self._forget_at(now)
                )
                return 0.0
            at = min(held.booked, now + self.longest_wait_seconds)
            self._held[platform] = held._replace(booked=at + held.spacing)
            return at - now

    def asked(self, platform: str, retry_after: float | None = None) -> float:
        """Record that the platform asked for fewer calls; return the seconds until the next one may begin."""
        retry_after = self._checked(retry_after)
        now = self._clock.monotonic()
        with self._lock:
            held = self._current(platform, now)
            if held is None:
                spacing, not_before = self.first_seconds, now
            elif now >= held.not_before:
                spacing, not_before = min(2 * held.spacing, self.longest_seconds), now
            else:  # the answer to a call that began before it asked: it asks once, not twice
                spacing, not_before = held.spacing, held.not_before
            wait = max(spacing, min(retry_after, self.longest_wait_seconds))
            not_before = max(not_before, now + wait)
            self._held[platform] = _Held(
                spacing, not_before, not_before, not_before, self._forget_at(not_before)
            )
        self._say(platform, not_before - now, spacing)
        return not_before - now

    def answered(self, platform: str) -> None:
        """Record that the platform answered a call."""
        if platform not in self._held:
            return
        now = self._clock.monotonic()
        with self._lock:
            held = self._current(platform, now)
            if held is None or now < held.not_before:  # an answer to a call that began before it asked
                return
            spacing = held.spacing / 2
            if spacing >= self.first_seconds:
                next_at = min(held.next_at, now + spacing)
                self._held[platform] = held._replace(spacing=spacing, next_at=next_at)
                return
            del self._held[platform]
        self._say_over(platform)

    def spacing(self, platform: str) -> float:
        """Return the seconds between two calls at present; 0 if the platform is not slowed down."""
        with self._lock:
            held = self._current(platform, self._clock.monotonic())
            return 0.0 if held is None else held.spacing

    @staticmethod
    def _checked(retry_after: float | None) -> float:
        """What a platform asked for; None and less than 0 are 0."""
        if retry_after is None:
            return 0.0
        given: object = retry_after
        if isinstance(given, bool) or not isinstance(given, int | float) or given != given:
            raise LocalConfigError(f"retry_after must be a number of seconds or None, not {retry_after!r}")
        return max(0.0, retry_after)

    def _current(self, platform: str, now: float) -> _Held | None:
        held = self._held.get(platform)
        if held is not None and now >= held.forget_at:
            del self._held[platform]
            return None
        return held

    def _forget_at(self, since: float) -> float:
        return since + self.longest_wait_seconds

    @staticmethod
    def _say(platform: str, wait: float, spacing: float) -> None:
        _log.warning(
            "%s asks for fewer calls: the next one in %.3g s, then one each %.3g s",
            platform,
            wait,
            spacing,
            extra={"event": "platform_slowed", "platform": platform, "wait": wait, "spacing": spacing},
        )

    @staticmethod
    def _say_over(platform: str) -> None:
        _log.info(
            "%s no longer asks for fewer calls",
            platform,
            extra={"event": "platform_at_full_pace", "platform": platform},
        )
