"""A program: the service behind uvicorn, with the Redis that it shares; its platform never answers.

python sharing_server.py DSN REDIS_URL
"""

from __future__ import annotations

import socket
import sys
from dataclasses import replace

import uvicorn

from conquiet.reconcile import (
    DEFAULT_RULES,
    IntakeRules,
    PlatformFetcher,
    ReconciliationService,
    SimulatedAdapter,
)


def main(dsn: str, redis_url: str) -> None:
    # One more report each hundred minutes: the test is over by then.
    rules = replace(DEFAULT_RULES, intake=IntakeRules(per_minute=0.01, burst=20))
    service = ReconciliationService(
        dsn, PlatformFetcher({"sim": SimulatedAdapter(failure_rate=1.0)}), rules=rules, shared=redis_url
    )
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(listening.getsockname()[1], flush=True)
        uvicorn.Server(uvicorn.Config(service.app, log_level="warning")).run(sockets=[listening])


if __name__ == "__main__":
    main(*sys.argv[1:])
