"""Several queues, each with its handler."""

from __future__ import annotations

import pytest

from conquiet.jobs import Job, JobConfigError, JobState, JobStore, JobWorker


@pytest.mark.clause("J-20")
def test_a_worker_serves_several_queues_each_with_its_handler(store: JobStore) -> None:
    seen: list[tuple[str, str]] = []
    for queue in ("mails", "reports", "left alone"):
        store.enqueue_many(queue, [{}] * 3)
    handlers = {
        "mails": lambda job: seen.append(("mailer", job.queue)),
        "reports": lambda job: seen.append(("reporter", job.queue)),
    }
    counts = JobWorker(store, handlers).run_until_idle()
    assert counts.succeeded == 6
    assert sorted(seen) == [("mailer", "mails")] * 3 + [("reporter", "reports")] * 3
    stats = store.stats()
    assert (stats["mails"].succeeded, stats["reports"].succeeded) == (3, 3)
    assert (stats["left alone"].ready, stats["left alone"].succeeded) == (3, 0)


@pytest.mark.clause("J-20", "J-18", "J-19")
def test_one_handler_for_several_queues_in_the_order_of_priority(store: JobStore) -> None:
    seen: list[str] = []
    for n in range(3):
        store.enqueue("a", {"n": f"a{n}"}, priority=5)
        store.enqueue("b", {"n": f"b{n}"}, priority=4)
    store.enqueue("a", {"n": "urgent"}, priority=-1)

    def handle(job: Job) -> None:
        seen.append(job.payload["n"])

    JobWorker(store, handle, queues=["a", "b"], concurrency=1).run_until_idle()
    assert seen == ["urgent", "b0", "b1", "b2", "a0", "a1", "a2"]


@pytest.mark.clause("J-20")
def test_of_the_handlers_only_those_of_its_queues_are_used(store: JobStore) -> None:
    store.enqueue("a", {})
    store.enqueue("b", {})
    counts = JobWorker(store, {"a": print, "b": lambda job: None}, queues=["b"]).run_until_idle()
    assert counts.claimed == 1
    assert store.stats()["a"].ready == 1


@pytest.mark.clause("J-20")
def test_a_queue_without_a_handler_is_refused_before_anything_is_claimed(store: JobStore) -> None:
    job = store.enqueue("unknown", {})
    with pytest.raises(JobConfigError, match="no handler for queue 'unknown'; there are: 'known'"):
        JobWorker(store, {"known": print}, queues=["known", "unknown"])
    assert store.get(job.id).state is JobState.READY
