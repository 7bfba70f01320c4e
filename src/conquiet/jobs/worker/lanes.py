"""The lanes of a worker: a queue with its own concurrency runs beside the others. Most workers have one lane."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple

from conquiet.flow import Beside, Child, Flow, Sleep, shielded
from conquiet.jobs.worker.committer import WorkerCounts
from conquiet.jobs.worker.context import JobContext
from conquiet.jobs.worker.run import WorkerRun

__all__ = ["Lanes"]


class Lanes:
    """Drives one `WorkerRun` per lane. `make` creates new ones for each round, because each can run only once."""

    def __init__(self, make: Callable[[], list[WorkerRun]], stops: int) -> None:
        self._make = make
        self._stops = stops
        self._state = (
            WorkerCounts(),
            make(),
        )  # the counts of earlier rounds and the runs of this one: replaced together
        self._stop_as_asked()

    @property
    def counts(self) -> WorkerCounts:
        past, runs = self._state
        return WorkerCounts(*map(sum, zip(*map(astuple, (past, *(w.counts for w in runs))), strict=True)))

    def stop(self) -> None:
        """First call: drain. Second call: end without waiting. Safe in any thread and signal handler."""
        self._stops += 1
        _stop(self._state[1])

    def running(self) -> list[JobContext]:
        return [context for run in self._state[1] for context in run.running()]

    def run(self, until_idle: bool, wait_for_delayed: bool) -> Flow[WorkerCounts]:
        _, runs = self._state
        if len(runs) == 1:
            return runs[0].run(until_idle, wait_for_delayed)
        return self._rounds(until_idle, wait_for_delayed)

    def _rounds(self, until_idle: bool, wait_for_delayed: bool) -> Flow[WorkerCounts]:
        while True:
            _, runs = self._state
            yield from _side_by_side(runs, until_idle, wait_for_delayed)
            # A job of one lane may have enqueued jobs for another lane that had ended before.
            if not until_idle or self._stops or not any(run.counts.claimed for run in runs):
                return self.counts
            self._state = (self.counts, self._make())
            self._stop_as_asked()

    def _stop_as_asked(self) -> None:
        for _ in range(self._stops):
            _stop(self._state[1])


def _stop(runs: Sequence[WorkerRun]) -> None:
    for run in runs:
        run.stop()


def _side_by_side(runs: Sequence[WorkerRun], until_idle: bool, wait_for_delayed: bool) -> Flow[None]:
    lanes: list[Child[WorkerCounts]] = []
    try:
        for run in runs:
            lane = yield Beside(run.run(until_idle, wait_for_delayed), name="job lane")
            lanes.append(lane)
        yield from _all_end(lanes, runs)
    except BaseException:  # cancellation included: no lane may continue alone
        _stop(runs)
        try:
            yield from shielded(_all_end(lanes))
        except BaseException:  # interrupted again: end without waiting
            _stop(runs)
            yield from shielded(_all_end(lanes))
            raise
        raise
    for lane in lanes:
        lane.result()


def _all_end(lanes: Sequence[Child[WorkerCounts]], runs: Sequence[WorkerRun] = ()) -> Flow[None]:
    """Wait for all lanes. If one fails, stop the others: a worker must not continue with half its queues."""
    while left := [lane for lane in lanes if not lane.done]:
        yield Sleep(None, *(lane.finished for lane in left))
        if any(lane.done and lane.failure is not None for lane in left):
            _stop(runs)
            runs = ()
