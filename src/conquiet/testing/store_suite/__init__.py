"""The conformance suite of job stores: our stores pass it, and so should yours.

Subclass it in a test file, and write one fixture:

    from conquiet.testing.store_suite import StoreSuite

    class TestMyStore(StoreSuite):
        @pytest.fixture
        def stores(self, tmp_path):
            return MySource(tmp_path)      # open(**options), advance(seconds), and optionally transaction()

`StoreSource` describes what the fixture returns. Stores are synchronous; wrap an asynchronous one in a class that runs
its coroutines. Stores may differ only in what `store.capabilities` declares: the tests check nothing else.

The attribute `clauses` of a test lists the clauses of the specification that it proves.
"""

import pytest

_PARTS = [
    *("batches", "begins", "claims", "concurrency", "enqueue", "leases", "lists", "names", "payloads"),
    *("records", "settlement", "source", "staleness", "states", "transactions", "wakeups"),
]
pytest.register_assert_rewrite(
    *(f"{__name__}.{part}" for part in _PARTS)
)  # so that failures show their values

from conquiet.testing.store_suite.batches import Batches  # noqa: E402
from conquiet.testing.store_suite.begins import Begins  # noqa: E402
from conquiet.testing.store_suite.claims import Claims  # noqa: E402
from conquiet.testing.store_suite.concurrency import Concurrency  # noqa: E402
from conquiet.testing.store_suite.enqueue import Enqueue  # noqa: E402
from conquiet.testing.store_suite.leases import Leases  # noqa: E402
from conquiet.testing.store_suite.lists import Lists  # noqa: E402
from conquiet.testing.store_suite.names import Names  # noqa: E402
from conquiet.testing.store_suite.payloads import Payloads  # noqa: E402
from conquiet.testing.store_suite.records import Records  # noqa: E402
from conquiet.testing.store_suite.settlement import Settlements  # noqa: E402
from conquiet.testing.store_suite.source import StoreSource, proves  # noqa: E402
from conquiet.testing.store_suite.staleness import Staleness  # noqa: E402
from conquiet.testing.store_suite.states import States  # noqa: E402
from conquiet.testing.store_suite.transactions import Transactions  # noqa: E402
from conquiet.testing.store_suite.wakeups import Wakeups  # noqa: E402

__all__ = ["StoreSource", "StoreSuite", "proves"]


class StoreSuite(
    States,
    Enqueue,
    Payloads,
    Names,
    Claims,
    Settlements,
    Staleness,
    Leases,
    Begins,
    Records,
    Lists,
    Batches,
    Concurrency,
    Transactions,
    Wakeups,
):
    """All tests of a job store."""
