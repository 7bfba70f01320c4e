"""The pace of calls to platforms, kept by several processes together."""

from __future__ import annotations

from conquiet.coordination.state import Script, SharedState
from conquiet.local import Pace

__all__ = ["SharedPace"]

_SCRIPT = Script("pace.lua")
_MOST_COPIES = 10_000


class SharedPace(Pace):
    """A `Pace` whose times are in Redis; itself the pace that is kept while Redis is away, anew in each outage.

    That a platform is not slowed down is remembered for `copy_seconds`: until then its calls cost no step on the server.
    """

    def __init__(
        self,
        state: SharedState,
        first_seconds: float = 1.0,
        longest_seconds: float = 60.0,
        longest_wait_seconds: float = 3_600.0,
    ) -> None:
        super().__init__(first_seconds, longest_seconds, longest_wait_seconds, state.clock)
        self._state = state
        self._full_pace_until: dict[str, float] = {}
        self._outage = 0  # the outage that the times of this process belong to

    def wait_for(self, platform: str) -> float:
        if self._is_at_full_pace(platform):
            return 0.0
        answer = self._step(platform, "wait")
        return super().wait_for(platform) if answer is None else answer[0]

    def asked(self, platform: str, retry_after: float | None = None) -> float:
        answer = self._step(platform, "asked", self._checked(retry_after))
        if answer is None:
            return super().asked(platform, retry_after)
        wait, _, spacing = answer
        self._say(platform, wait, spacing)
        return wait

    def answered(self, platform: str) -> None:
        if self._is_at_full_pace(platform):
            return
        answer = self._step(platform, "answered")
        if answer is None:
            super().answered(platform)
        elif answer[1] and not answer[2]:
            self._say_over(platform)

    def spacing(self, platform: str) -> float:
        answer = self._step(platform, "look")
        return super().spacing(platform) if answer is None else answer[2]

    def _is_at_full_pace(self, platform: str) -> bool:
        return self._state.clock.monotonic() < self._full_pace_until.get(platform, 0.0)

    def _step(self, platform: str, call: str, retry_after: float = 0.0) -> tuple[float, float, float] | None:
        """Run one step; return the seconds to wait, and the spacing before and after. None if Redis is away."""
        seconds = (self.first_seconds, self.longest_seconds, self.longest_wait_seconds)
        limits = (round(value * 1_000_000) for value in seconds)
        asked_for = round(min(retry_after, self.longest_wait_seconds) * 1_000_000)
        answer = self._state.run(_SCRIPT, "pace", platform, call, *limits, asked_for)
        if answer is None:
            self._full_pace_until.pop(platform, None)
            self._be_alone()
            return None
        wait, before, spacing = (value / 1_000_000 for value in answer)
        if spacing:
            self._full_pace_until.pop(platform, None)
        else:
            if len(self._full_pace_until) >= _MOST_COPIES:
                self._full_pace_until.clear()
            self._full_pace_until[platform] = self._state.clock.monotonic() + self._state.copy_seconds
        return wait, before, spacing

    def _be_alone(self) -> None:
        with self._lock:
            if self._outage != self._state.outages:
                self._outage = self._state.outages
                self._begin()
