"""The suite that is shipped to users, on every store of ours, synchronous and asynchronous."""

from __future__ import annotations

from typing import Any

import pytest

from conquiet.testing.store_suite import StoreSource, StoreSuite


class TestStores(StoreSuite):
    @pytest.fixture
    def stores(self, source: Any) -> StoreSource:
        return source
