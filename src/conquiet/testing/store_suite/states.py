"""The transition table: every transition in it works, every other pair of state and trigger is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from conquiet.jobs import (
    TRANSITIONS,
    DuplicateJobError,
    IllegalTransitionError,
    Job,
    JobNotFoundError,
    JobState,
    JobStore,
    StaleLeaseError,
    Transition,
    targets,
)
from conquiet.testing.store_suite.source import (
    QUEUE,
    Advance,
    Fixtures,
    Scene,
    StoreSource,
    proves,
    unchanged,
)

__all__ = ["States"]

READY, IN_FLIGHT, FAILED, SUCCEEDED = JobState
LATER = 1_000_000.0
TRIGGERS = tuple(dict.fromkeys(move.trigger for move in TRANSITIONS))
Steps = tuple[Callable[[Scene], Job | None], Callable[[Scene, Any], object]]


def _reach(state: JobState, **options: Any) -> Callable[[Scene], Job]:
    return lambda scene: scene.reach(state, **options)


def _expired(scene: Scene) -> Job:
    held = scene.in_flight(ttl=10.0)
    scene.advance(10.0)
    return held


def _often_expired(scene: Scene) -> Job:
    held = _expired(scene)
    scene.claim(lease_ttl=10.0)
    scene.advance(10.0)
    return held


def _exhausted(scene: Scene) -> Job:
    return scene.in_flight(max_retries=0)


def _old(state: JobState) -> Callable[[Scene], Job]:
    def old(scene: Scene) -> Job:
        held = scene.reach(state)
        scene.advance(100.0)
        return held

    return old


def _claim_nothing(scene: Scene, held: Job) -> None:
    assert scene.store.claim(QUEUE) == []


# For each line of the table: a job in its source state that meets its condition, and the call that triggers it.
# The suite opens these stores with max_lease_expiries=2.
MOVES: dict[tuple[JobState | None, str, JobState | None, str], Steps] = {
    (None, "enqueue", READY, "no job has that id"): (
        lambda scene: None,
        lambda scene, _: scene.store.enqueue(QUEUE, {}, id="moved"),
    ),
    (READY, "claim", IN_FLIGHT, "retry_at has come"): (_reach(READY), lambda scene, held: scene.claim()),
    (IN_FLIGHT, "ack", SUCCEEDED, ""): (_reach(IN_FLIGHT), lambda scene, held: scene.store.ack(held)),
    (IN_FLIGHT, "nack", READY, "retries are left"): (
        _reach(IN_FLIGHT, max_retries=1),
        lambda scene, held: scene.store.nack(held),
    ),
    (IN_FLIGHT, "nack", FAILED, "no retries are left"): (
        _exhausted,
        lambda scene, held: scene.store.nack(held),
    ),
    (IN_FLIGHT, "claim", IN_FLIGHT, "the lease has expired"): (
        _expired,
        lambda scene, held: scene.claim(),
    ),
    (IN_FLIGHT, "nack", FAILED, "the failure is not retryable"): (
        _reach(IN_FLIGHT),
        lambda scene, held: scene.store.nack(held, retryable=False),
    ),
    (IN_FLIGHT, "claim", FAILED, "the lease has expired as often as is allowed"): (
        _often_expired,
        _claim_nothing,
    ),
    (IN_FLIGHT, "heartbeat", IN_FLIGHT, ""): (
        _reach(IN_FLIGHT),
        lambda scene, held: scene.store.heartbeat(held),
    ),
    (IN_FLIGHT, "release", READY, "no retry is consumed"): (
        _reach(IN_FLIGHT),
        lambda scene, held: scene.store.release(held),
    ),
    (FAILED, "retry", READY, ""): (_reach(FAILED), lambda scene, held: scene.store.retry(held.id)),
    (FAILED, "discard", None, ""): (_reach(FAILED), lambda scene, held: scene.store.discard(held.id)),
    (READY, "discard", None, ""): (_reach(READY), lambda scene, held: scene.store.discard(held.id)),
    (SUCCEEDED, "prune", None, "it finished long enough ago"): (
        _old(SUCCEEDED),
        lambda scene, held: scene.store.prune(100.0),
    ),
    (FAILED, "prune", None, "it finished long enough ago"): (
        _old(FAILED),
        lambda scene, held: scene.store.prune(100.0),
    ),
}


def _key(move: Transition) -> tuple[JobState | None, str, JobState | None, str]:
    return move.source, move.trigger, move.target, move.when


def _name(move: Transition) -> str:
    when = f" ({move.when})" if move.when else ""
    return f"{move.source or 'none'} {move.trigger} {move.target or 'none'}{when}".replace(" ", "-")


IMPOSSIBLE = [
    (state, trigger) for state in (None, *JobState) for trigger in TRIGGERS if not targets(state, trigger)
]


class States(Fixtures):
    @proves("J-01")
    def test_there_are_four_states_and_a_job_is_in_one_of_them(self, scene: Scene) -> None:
        assert [state.value for state in JobState] == ["Ready", "InFlight", "Failed", "Succeeded"]
        ids = {scene.reach(state).id: state for state in (SUCCEEDED, FAILED, IN_FLIGHT, READY)}
        lists = {state: [job.id for job in scene.store.list(state=state)] for state in JobState}
        assert lists == {state: [job_id] for job_id, state in ids.items()}
        assert [job.id for job in scene.store.list()] == list(ids)
        stats = scene.store.stats()[QUEUE]
        assert (stats.ready, stats.in_flight, stats.failed, stats.succeeded) == (1, 1, 1, 1)
        assert (stats.delayed, stats.expired) == (0, 0)

    def test_every_line_of_the_table_has_a_test(self) -> None:
        assert set(MOVES) == {_key(move) for move in TRANSITIONS}

    @proves("J-01", "J-02")
    @pytest.mark.parametrize("move", TRANSITIONS, ids=_name)
    def test_a_move_of_the_table(self, stores: StoreSource, move: Transition) -> None:
        scene = Scene(stores.open(max_lease_expiries=2), stores.advance)
        prepare, perform = MOVES[_key(move)]
        held = prepare(scene)
        job_id = held.id if held else "moved"
        assert scene.state(job_id) == move.source
        perform(scene, held)
        assert scene.state(job_id) == move.target

    @proves("J-02")
    @pytest.mark.parametrize(("state", "trigger"), IMPOSSIBLE)
    def test_what_the_table_does_not_have_is_refused(
        self, scene: Scene, state: JobState | None, trigger: str
    ) -> None:
        held = scene.reach(state)
        store = scene.store
        if trigger in ("claim", "prune"):
            scene.advance(LATER)
        with unchanged(store):
            match trigger:
                case "enqueue":
                    with pytest.raises(DuplicateJobError):
                        store.enqueue(QUEUE, {"other": 1}, id=held.id)
                case "claim":
                    assert store.claim(QUEUE) == []
                case "prune":
                    assert store.prune(0.0) == 0
                case "retry" | "discard":
                    refusal = IllegalTransitionError if state else JobNotFoundError
                    with pytest.raises(refusal, match=held.id):
                        getattr(store, trigger)(held.id)
                case "ack" | "nack" | "release" | "heartbeat":
                    with pytest.raises(StaleLeaseError, match=held.id):
                        getattr(store, trigger)(held)
                case _:
                    pytest.fail(f"the trigger {trigger} has no test")
        assert scene.state(held.id) == state

    @proves("J-02", "J-04")
    def test_a_claim_before_retry_at_is_no_move(self, scene: Scene) -> None:
        scene.store.enqueue(QUEUE, {}, delay=10.0)
        scene.advance(9.0)
        with unchanged(scene.store):
            assert scene.store.claim(QUEUE) == []

    @proves("J-02", "J-11")
    def test_a_claim_of_a_leased_job_is_no_move(self, scene: Scene) -> None:
        scene.in_flight(ttl=10.0)
        scene.advance(9.0)
        with unchanged(scene.store):
            assert scene.store.claim(QUEUE) == []

    @proves("J-02")
    @pytest.mark.parametrize("state", [SUCCEEDED, FAILED])
    def test_a_prune_of_what_finished_lately_is_no_move(self, scene: Scene, state: JobState) -> None:
        scene.reach(state)
        scene.advance(9.0)
        with unchanged(scene.store):
            assert scene.store.prune(10.0) == 0

    @proves("J-02")
    @pytest.mark.parametrize("trigger", ["retry", "discard"])
    def test_a_person_is_told_that_a_job_does_not_exist(self, store: JobStore, trigger: str) -> None:
        with pytest.raises(JobNotFoundError, match="'nobody'"):
            getattr(store, trigger)("nobody")
        assert store.get("nobody") is None

    @proves("J-02")
    def test_an_expired_job_is_still_in_flight_for_people(self, scene: Scene, advance: Advance) -> None:
        held = scene.in_flight(ttl=10.0)
        advance(10.0)
        for move in (scene.store.retry, scene.store.discard):
            with unchanged(scene.store), pytest.raises(IllegalTransitionError, match="InFlight"):
                move(held.id)
