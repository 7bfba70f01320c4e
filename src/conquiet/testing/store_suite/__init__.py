"""The conformance suite of job stores: what ours pass, for whoever writes one.

Subclass it in a test file, and write one fixture:

    from conquiet.testing.store_suite import StoreSuite

    class TestMyStore(StoreSuite):
        @pytest.fixture
        def stores(self, tmp_path):
            return MySource(tmp_path)      # open(**options), advance(seconds), and perhaps transaction()

`StoreSource` says what the fixture gives. Stores are synchronous; put an asynchronous one behind a front that
runs its coroutines. They may differ only in what `store.capabilities` declares: the tests ask it, and nothing else.

Each test carries the clauses of the specification that it proves as an attribute `clauses`.
"""

import pytest

_PARTS = [
    *("batches", "claiming", "concurrency", "enqueueing", "leases", "names", "payloads"),
    *("records", "settling", "source", "staleness", "states", "transactions", "waking"),
]
pytest.register_assert_rewrite(
    *(f"{__name__}.{part}" for part in _PARTS)
)  # so that failures show their values

from conquiet.testing.store_suite.batches import Batches  # noqa: E402
from conquiet.testing.store_suite.claiming import Claiming  # noqa: E402
from conquiet.testing.store_suite.concurrency import Concurrency  # noqa: E402
from conquiet.testing.store_suite.enqueueing import Enqueueing  # noqa: E402
from conquiet.testing.store_suite.leases import Leases  # noqa: E402
from conquiet.testing.store_suite.names import Names  # noqa: E402
from conquiet.testing.store_suite.payloads import Payloads  # noqa: E402
from conquiet.testing.store_suite.records import Records  # noqa: E402
from conquiet.testing.store_suite.settling import Settling  # noqa: E402
from conquiet.testing.store_suite.source import StoreSource, proves  # noqa: E402
from conquiet.testing.store_suite.staleness import Staleness  # noqa: E402
from conquiet.testing.store_suite.states import States  # noqa: E402
from conquiet.testing.store_suite.transactions import Transactions  # noqa: E402
from conquiet.testing.store_suite.waking import Waking  # noqa: E402

__all__ = ["StoreSource", "StoreSuite", "proves"]


class StoreSuite(
    States,
    Enqueueing,
    Payloads,
    Names,
    Claiming,
    Settling,
    Staleness,
    Leases,
    Records,
    Batches,
    Concurrency,
    Transactions,
    Waking,
):
    """Every test there is for a job store."""
