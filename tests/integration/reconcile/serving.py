"""A program: the service behind uvicorn, on a free port that it prints.

python serving.py DSN
"""

from __future__ import annotations

import socket
import sys
from typing import Any

import uvicorn

from conquiet.clock import SYSTEM_CLOCK, utc
from conquiet.reconcile import PlatformFetcher, ReconciliationJob, ReconciliationService, SimulatedAdapter
from conquiet.reconcile.intake.submission import Submission
from conquiet.reconcile.models import AffiliateReport

SEED = 7


def stored(service: ReconciliationService, payload: dict[str, Any]) -> ReconciliationJob:
    """A report stored without the intake, and its job."""
    now = utc(SYSTEM_CLOCK.time())
    submission = Submission.from_payload(payload, now)
    with service.sessions() as session:
        values = {name: getattr(submission, name) for name in submission.__slots__}
        report = AffiliateReport(**values, received_at=now)
        session.add(report)
        session.commit()
        return ReconciliationJob(report.id)


def main(dsn: str) -> None:
    service = ReconciliationService(
        dsn, PlatformFetcher({"sim": SimulatedAdapter(SEED, latency_seconds=0.005)}), workers=3
    )
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(listening.getsockname()[1], flush=True)
        config = uvicorn.Config(service.app, log_level="warning")
        uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main(*sys.argv[1:])
