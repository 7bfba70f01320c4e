"""The caller's transaction, for stores that can join one; the others refuse it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from conquiet.jobs import DuplicateJobError, JobConfigError, JobState, NewJob, StaleLeaseError
from conquiet.testing.store_suite.source import QUEUE, Fixtures, Scene, StoreSource, proves, unchanged

__all__ = ["Transactions"]


class Abandoned(Exception):
    """Raised inside a transaction, so that it is rolled back."""


@contextmanager
def rolled_back(stores: StoreSource) -> Iterator[Any]:
    with pytest.raises(Abandoned), stores.transaction() as connection:  # noqa: PT012
        yield connection
        raise Abandoned


class Transactions(Fixtures):
    @proves("J-29", "J-30")
    def test_a_connection_that_is_none_is_refused(self, scene: Scene) -> None:
        held = scene.in_flight()
        with unchanged(scene.store):
            with pytest.raises(JobConfigError, match="connection="):
                scene.store.enqueue(QUEUE, {}, connection=object())
            with pytest.raises(JobConfigError, match="connection="):
                scene.store.enqueue_many(QUEUE, [{}], connection=object())
            with pytest.raises(JobConfigError, match="connection="):
                scene.store.ack(held, connection=object())

    @proves("J-29")
    def test_a_job_is_there_if_the_transaction_commits(self, stores: StoreSource, scene: Scene) -> None:
        store = scene.store
        if not store.capabilities.joins_transactions:
            return
        with stores.transaction() as connection:
            given = store.enqueue(QUEUE, {"n": 1}, id="a", connection=connection)
            assert store.enqueue_many(QUEUE, [NewJob({}, id="b")], connection=connection) == ["b"]
            assert store.list() == stores.open().list() == []
        assert store.get("a") == given
        assert [job.id for job in store.claim(QUEUE, 10)] == ["a", "b"]

    @proves("J-29")
    def test_it_is_not_if_the_transaction_is_rolled_back(self, stores: StoreSource, scene: Scene) -> None:
        store = scene.store
        if not store.capabilities.joins_transactions:
            return
        with rolled_back(stores) as connection:
            store.enqueue(QUEUE, {}, id="a", connection=connection)
            store.enqueue_many(QUEUE, [{}, {}], connection=connection)
        assert store.list() == []
        assert store.enqueue(QUEUE, {}, id="a").id == "a"

    @proves("J-29", "J-03")
    def test_a_duplicate_does_not_spoil_the_transaction(self, stores: StoreSource, scene: Scene) -> None:
        store = scene.store
        if not store.capabilities.joins_transactions:
            return
        store.enqueue(QUEUE, {"old": 1}, id="taken")
        before = store.get("taken")
        with stores.transaction() as connection:
            store.enqueue(QUEUE, {}, id="first", connection=connection)
            for taken in ("taken", "first"):
                with pytest.raises(DuplicateJobError) as refused:
                    store.enqueue(QUEUE, {"new": 1}, id=taken, connection=connection)
                assert refused.value.ids == (taken,)
            items = [NewJob({}, id="lost"), NewJob({}, id="taken")]
            with pytest.raises(DuplicateJobError):
                store.enqueue_many(QUEUE, items, connection=connection)
            items = [NewJob({}, id="taken"), NewJob({}, id="second")]
            added = store.enqueue_many(QUEUE, items, on_duplicate="skip", connection=connection)
            assert added == ["second"]
        assert [job.id for job in store.list()] == ["taken", "first", "second"]
        assert store.get("taken") == before

    @proves("J-30", "J-06")
    def test_an_ack_commits_with_the_transaction(self, stores: StoreSource, scene: Scene) -> None:
        held = scene.in_flight()
        if not scene.store.capabilities.joins_transactions:
            return
        with stores.transaction() as connection:
            scene.store.ack(held, connection=connection)
            assert scene.state(held.id) is JobState.IN_FLIGHT
        assert scene.state(held.id) is JobState.SUCCEEDED
        with unchanged(scene.store), pytest.raises(StaleLeaseError):
            scene.store.ack(held)

    @proves("J-30")
    def test_an_ack_is_rolled_back_with_the_transaction(self, stores: StoreSource, scene: Scene) -> None:
        held = scene.in_flight()
        if not scene.store.capabilities.joins_transactions:
            return
        with unchanged(scene.store), rolled_back(stores) as connection:
            scene.store.ack(held, connection=connection)
        scene.store.ack(held)  # the lease is still valid

    @proves("J-30", "J-09")
    @pytest.mark.parametrize("staleness", ["reclaimed", "expired", "settled"])
    def test_a_stale_ack_is_refused_in_a_transaction_too(
        self, stores: StoreSource, scene: Scene, staleness: str
    ) -> None:
        held = scene.in_flight(ttl=10.0)
        if not scene.store.capabilities.joins_transactions:
            return
        if staleness == "settled":
            scene.store.release(held)
        else:
            scene.advance(10.0)
        if staleness == "reclaimed":
            scene.claim()
        with unchanged(scene.store), stores.transaction() as connection, pytest.raises(StaleLeaseError):
            scene.store.ack(held, connection=connection)
