"""The values that the queue returns, and its errors as values."""

from __future__ import annotations

import dataclasses

import pytest

from conquiet import errors
from conquiet.queue import BacklogStats, ClaimedMessages, MalformedEntry, QueueMessage


def test_a_message_is_a_frozen_value() -> None:
    message = QueueMessage("1-1", {"n": [1]}, "orders", "billing")
    assert message == QueueMessage("1-1", {"n": [1]}, "orders", "billing")
    assert message != QueueMessage("1-1", {"n": [2]}, "orders", "billing")
    # It is hashable, although it holds a dict.
    assert {message, QueueMessage("1-1", {"n": [1]}, "orders", "billing")} == {message}
    assert not hasattr(message, "__dict__")
    for value in (message, MalformedEntry("1-1", "orders", "billing", "why", 5)):
        for field in dataclasses.fields(value):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(value, field.name, "other")


def test_claimed_messages_are_a_list_with_what_is_gone() -> None:
    message = QueueMessage("1-1", {}, "orders", "billing")
    claimed = ClaimedMessages([message], ["1-2"])
    assert claimed == [message]
    assert claimed.gone == ["1-2"]
    assert ClaimedMessages() == []
    assert ClaimedMessages().gone == []


def test_a_malformed_entry_does_not_show_what_it_holds() -> None:
    assert {field.name for field in dataclasses.fields(MalformedEntry)} == {
        "id",
        "stream",
        "group",
        "reason",
        "size",
    }
    assert {field.name for field in dataclasses.fields(BacklogStats)} == {
        "length", "lag", "pending", "pending_by_consumer", "oldest_pending_id", "oldest_pending_idle_ms",
    }  # fmt: skip


@pytest.mark.clause("S-29")
def test_every_error_of_the_queue_is_a_queue_error() -> None:
    for kind in (
        errors.QueueConfigError,
        errors.QueuePayloadError,
        errors.QueueConnectionError,
        errors.PartialEnqueueError,
        errors.GroupLostError,
        errors.LeaseLostError,
        errors.MalformedEntryError,
    ):
        assert issubclass(kind, errors.QueueError)
        # Whether to try again is for the caller to decide: no error says so.
        assert not [name for name in dir(kind) if "retr" in name.lower() or "fatal" in name.lower()]
    assert issubclass(errors.QueueConfigError, ValueError)
    assert issubclass(errors.QueuePayloadError, errors.PayloadError)
