"""Records: the attempts of a job, why it failed, and how it is retried, discarded or pruned."""

from __future__ import annotations

import pytest

from conquiet.jobs import Job, JobState, JobStore, Nack, StaleLeaseError
from conquiet.testing.store_suite.source import QUEUE, Advance, Fixtures, Scene, close_to, proves

__all__ = ["Records"]


class Silent(Exception):
    """An exception whose __str__ raises."""

    def __str__(self) -> str:
        raise RuntimeError("no text for you")


def _raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:  # noqa: BLE001 - it is what this is for
        return caught


class Records(Fixtures):
    @proves("J-27")
    def test_every_attempt_is_recorded(self, scene: Scene) -> None:
        store, advance = scene.store, scene.advance
        given = store.enqueue(QUEUE, {})
        advance(1.0)
        held = scene.claim(worker="anna", lease_ttl=10.0)  # at 1
        advance(2.0)
        store.nack(held, ValueError("first"))  # at 3
        advance(7.0)
        store.release(scene.claim(worker="bert", lease_ttl=10.0))  # at 10
        advance(5.0)
        held = scene.claim(worker="carl", lease_ttl=10.0)  # at 15
        advance(5.0)
        store.heartbeat(held)  # at 20, so that it expires at 30
        advance(20.0)
        held = scene.claim(worker="dora", lease_ttl=10.0)  # at 40
        advance(1.0)
        store.nack_many([Nack(held, LookupError("last"), retryable=False, category="BUSINESS")])  # at 41
        store.retry(given.id)
        advance(9.0)
        held = scene.claim(worker="emma", lease_ttl=10.0)  # at 50
        advance(4.0)
        store.ack(held)  # at 54
        attempts = scene.job(given.id).attempts
        assert [
            (a.number, a.worker, a.outcome, a.category, a.error_type, a.error_message) for a in attempts
        ] == [
            (1, "anna", "failed", None, "ValueError", "first"),
            (2, "bert", "released", None, None, None),
            (3, "carl", "lease expired", None, None, None),
            (4, "dora", "failed", "BUSINESS", "LookupError", "last"),
            (5, "emma", "succeeded", None, None, None),
        ]
        times = [(1, 3), (10, 10), (15, 30), (40, 41), (50, 54)]
        for attempt, (start, end) in zip(attempts, times, strict=True):
            assert close_to(attempt.started_at, given.enqueued_at, start)
            assert close_to(attempt.ended_at, given.enqueued_at, end)

    @proves("J-27")
    def test_failed_jobs_are_listed_with_their_reasons(self, scene: Scene) -> None:
        first = scene.in_flight(max_retries=0)
        scene.store.nack(first, ConnectionError("the bank does not answer"))
        second = scene.in_flight()
        scene.store.nack(second, "plain text", retryable=False)
        scene.reach(JobState.SUCCEEDED)
        scene.reach(JobState.READY)
        failed = scene.store.list(state=JobState.FAILED, queue=QUEUE)
        assert [job.id for job in failed] == [first.id, second.id]
        assert [job.error for job in failed] == ["the bank does not answer", "plain text"]
        assert [job.attempts[-1].error_type for job in failed] == ["ConnectionError", None]
        assert [job.attempts[-1].error_message for job in failed] == [job.error for job in failed]

    @proves("J-27")
    def test_a_retried_job_starts_over_with_its_history(self, scene: Scene) -> None:
        held = scene.in_flight(max_retries=1, ttl=100.0)
        scene.store.nack(held, "one")
        scene.advance(1.0)
        scene.store.nack(scene.claim(), "two")
        failed = scene.job(held.id)
        assert (failed.state, failed.retries) == (JobState.FAILED, 1)
        retried = scene.store.retry(held.id)
        assert retried == scene.job(held.id)
        assert (retried.state, retried.retries, retried.retry_at) == (JobState.READY, 0, None)
        assert (retried.attempts, retried.error) == (failed.attempts, "two")
        again = scene.claim()  # without delay
        assert again.lease is not None
        assert (again.lease.version, again.max_retries) == (3, 1)
        scene.store.nack(again, "three")
        assert scene.job(held.id).state is JobState.READY  # it has its retry again

    @proves("J-27")
    @pytest.mark.parametrize("state", [JobState.READY, JobState.FAILED])
    def test_a_discarded_job_is_gone_and_its_id_free(self, scene: Scene, state: JobState) -> None:
        held = scene.reach(state)
        scene.store.discard(held.id)
        assert scene.store.get(held.id) is None
        assert scene.store.list() == []
        assert scene.store.claim(QUEUE, 10) == []
        again = scene.store.enqueue(QUEUE, {"second": "life"}, id=held.id)
        assert (again.attempts, again.error) == ((), None)
        claimed = scene.claim()
        assert claimed.lease is not None
        assert (claimed.id, claimed.lease.version) == (held.id, 1)

    def test_a_discarded_delayed_job_does_not_come_back(self, scene: Scene) -> None:
        scene.store.enqueue(QUEUE, {}, id="a", delay=10.0)
        scene.store.discard("a")
        scene.advance(10.0)
        assert scene.store.claim(QUEUE, 10) == []

    @proves("J-02", "J-27")
    def test_pruning_removes_what_finished_long_ago_and_nothing_else(
        self, store: JobStore, advance: Advance
    ) -> None:
        store.enqueue_many(QUEUE, [{"n": n} for n in range(6)])
        old_done, old_failed, released, leased, *_ = store.claim(QUEUE, 4, lease_ttl=1000.0)
        store.ack(old_done)
        store.nack(old_failed, "no", retryable=False)
        store.release(released)
        advance(50.0)
        new_done, new_failed = store.claim(QUEUE, 1), store.claim(QUEUE, 1)
        store.ack(new_done[0])
        store.nack(new_failed[0], "no", retryable=False)
        advance(50.0)
        assert store.prune(100.5) == 0
        assert store.prune(100.0) == 2
        left = {job.id for job in store.list()}
        assert not left & {old_done.id, old_failed.id}
        assert len(left) == 4
        assert leased.id in left
        assert store.prune(0.0) == 2
        assert {job.state for job in store.list()} == {JobState.READY, JobState.IN_FLIGHT}

    @proves("J-27")
    def test_a_pruned_id_can_be_used_again(self, scene: Scene) -> None:
        held = scene.reach(JobState.SUCCEEDED, id="stable")
        assert scene.store.prune(0.0) == 1
        again = scene.store.enqueue(QUEUE, {"second": "life"}, id="stable")
        assert again == scene.job("stable")
        with pytest.raises(StaleLeaseError):
            scene.store.ack(held)
        assert scene.claim().payload == {"second": "life"}

    def test_a_retried_job_counts_from_its_new_end(self, scene: Scene) -> None:
        held = scene.reach(JobState.FAILED)
        scene.advance(100.0)
        scene.store.retry(held.id)
        scene.store.ack(scene.claim())
        scene.advance(10.0)
        assert scene.store.prune(50.0) == 0
        assert scene.store.prune(10.0) == 1

    @proves("J-27")
    @pytest.mark.parametrize(
        ("error", "shown"),
        [
            ("a\0b", "a\N{SYMBOL FOR NULL}b"),
            ("lone \ud800 surrogate", "lone ? surrogate"),
            ("control \x01\x1f and line\r\n\u2028", "control \x01\x1f and line\r\n\u2028"),
            ("'; DROP TABLE conquiet_jobs; -- %s {} \\", "'; DROP TABLE conquiet_jobs; -- %s {} \\"),
            ("日本 🚀", "日本 🚀"),
            ("", ""),
            ("postgresql://app:hunter2@db/prod is down", "postgresql://app:***@db/prod is down"),
            ("host=db password=hunter2 dbname=x", "host=db password=*** dbname=x"),
            (KeyError("a\0b"), "'a\\x00b'"),
            (ValueError("a\0b"), "a\N{SYMBOL FOR NULL}b"),
        ],
        ids=lambda value: ascii(value)[:40],
    )
    def test_an_error_text_never_keeps_a_job_from_failing(
        self, scene: Scene, error: BaseException | str, shown: str
    ) -> None:
        held = scene.in_flight()
        scene.store.nack(held, error, retryable=False)
        job = scene.job(held.id)
        assert (job.state, job.error) == (JobState.FAILED, shown)
        assert job.attempts[0].error_message == shown

    @proves("J-27")
    def test_a_huge_error_text_is_cut(self, scene: Scene) -> None:
        held = scene.in_flight()
        scene.store.nack(held, RuntimeError("x " * 500_000), retryable=False)
        job = scene.job(held.id)
        assert job.error is not None
        assert 1000 < len(job.error) < 20_000
        assert job.error.startswith("x x x")

    @proves("J-27")
    def test_cutting_an_error_text_does_not_bare_half_a_password(self, scene: Scene) -> None:
        for length in range(8_120, 8_200, 2):
            held = scene.in_flight()
            text = "-" * length + " postgresql://app:hunter2@db/prod and more"
            scene.store.nack(held, text, retryable=False)
            assert "hunt" not in (scene.job(held.id).error or "")
            scene.store.discard(held.id)

    @proves("J-27")
    def test_an_exception_without_a_text_fails_the_job_as_well(self, scene: Scene) -> None:
        held = scene.in_flight()
        scene.store.nack(held, Silent(), retryable=False)
        job = scene.job(held.id)
        assert job.state is JobState.FAILED
        assert job.attempts[0].error_type == "Silent"

    @proves("J-27")
    def test_the_traceback_of_an_attempt_is_kept_without_passwords(self, scene: Scene) -> None:
        held = scene.in_flight(max_retries=1, ttl=100.0)
        scene.store.nack(held, _raised(LookupError("no row at postgresql://app:hunter2@db/shop")))
        scene.advance(100.0)
        scene.store.nack(scene.claim(), ValueError("never raised"))
        first, second = scene.job(held.id).attempts
        assert first.traceback is not None
        assert first.traceback.startswith("Traceback (most recent call last):\n")
        assert "in _raised" in first.traceback
        assert first.traceback.endswith("LookupError: no row at postgresql://app:***@db/shop")
        assert second.traceback is None
        assert scene.store.retry(held.id).attempts == (first, second)
        assert scene.claim().attempts == (first, second)

    @proves("J-27")
    def test_of_a_long_traceback_the_end_is_kept(self, scene: Scene) -> None:
        held = scene.in_flight()
        lines = "\n".join(f"line {number} ä \0 \ud800 password=hunter2" for number in range(10_000))
        scene.store.nack_many([Nack(held, _raised(ValueError(lines)), retryable=False)])
        trace = scene.job(held.id).attempts[0].traceback
        assert trace is not None
        assert 7_000 < len(trace.encode()) <= 8_192
        assert trace.endswith("line 9999 ä \N{SYMBOL FOR NULL} ? password=***")
        assert trace.startswith("line ")
        assert "hunter2" not in trace

    def test_an_attempt_that_did_not_fail_has_no_traceback(self, scene: Scene) -> None:
        held = scene.in_flight()
        scene.store.release(held)
        scene.store.ack(scene.claim())
        assert [attempt.traceback for attempt in scene.job(held.id).attempts] == [None, None]

    @proves("J-27")
    @pytest.mark.parametrize("category", ["a\0b", "\ud800", "x" * 100_000], ids=lambda text: ascii(text)[:20])
    def test_a_strange_category_fails_the_job_as_well(self, scene: Scene, category: str) -> None:
        held = scene.in_flight()
        (result,) = scene.store.nack_many([Nack(held, "no", retryable=False, category=category)])
        assert result.ok
        assert scene.job(held.id).state is JobState.FAILED

    def test_a_job_that_was_read_stays_as_it_was(self, scene: Scene) -> None:
        held = scene.in_flight()
        before: Job = scene.job(held.id)
        scene.store.ack(held)
        assert before.state is JobState.IN_FLIGHT
        assert hash(before) == hash(scene.job(held.id))
