from __future__ import annotations

import conquiet.local
from tests.integration.local.programs import run_program


def test_the_room_brings_no_client_along() -> None:
    assert set(run_program("imported")[0].split()) <= {
        "asyncio.events"
    }  # the effect core needs asyncio's exceptions


def test_the_public_names_are_there() -> None:
    names = conquiet.local.__all__
    assert [name for name in names if not hasattr(conquiet.local, name)] == []
    assert len(set(names)) == len(names)
