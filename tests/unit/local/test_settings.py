from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from conquiet.errors import ConquietError
from conquiet.local import QUEUE_SETTINGS, LocalConfigError, PriorityDelayQueue, QueueSettings


def test_the_defaults() -> None:
    assert dict(QUEUE_SETTINGS.priorities) == {"high": 0, "normal": 5, "low": 10}
    assert (QUEUE_SETTINGS.max_in_memory, QUEUE_SETTINGS.warn_depth) == (5000, 1000)
    assert PriorityDelayQueue().settings is QUEUE_SETTINGS
    assert hash(QUEUE_SETTINGS) == hash(QueueSettings())


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"priorities": {}}, "priorities must map at least one label"),
        ({"priorities": "high"}, "priorities must map at least one label"),
        ({"priorities": {"high": "0"}}, "'high' to '0'"),
        ({"priorities": {"high": True}}, "'high' to True"),
        ({"priorities": {"high": 0.5}}, "'high' to 0.5"),
        ({"priorities": {"": 1}}, "'' to 1"),
        ({"priorities": {3: 1}}, "3 to 1"),
        ({"max_in_memory": 0}, "max_in_memory must be an int of at least 1, not 0"),
        ({"max_in_memory": 5.0}, "max_in_memory must be an int of at least 1, not 5.0"),
        ({"warn_depth": -1}, "warn_depth must be an int of at least 1, not -1"),
        ({"warn_depth": True}, "warn_depth must be an int of at least 1, not True"),
        ({"ageing_seconds": 0}, "ageing_seconds must be a number of seconds, above 0, not 0"),
        ({"ageing_seconds": "60"}, "ageing_seconds must be a number of seconds, above 0, not '60'"),
    ],
)
def test_wrong_settings_are_refused_and_named(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(LocalConfigError, match=named) as caught:
        QueueSettings(**wrong)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, ConquietError)


def test_settings_cannot_be_changed_behind_a_queue() -> None:
    labels = {"urgent": 1}
    settings = QueueSettings(priorities=labels)
    labels["urgent"] = 9
    assert dict(settings.priorities) == {"urgent": 1}
    with pytest.raises(TypeError):
        settings.priorities["urgent"] = 9  # type: ignore[index]
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.max_in_memory = 1  # type: ignore[misc]
    assert dataclasses.replace(settings, max_in_memory=7).priorities == {"urgent": 1}
