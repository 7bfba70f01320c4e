"""Whether a server of yours keeps what conquiet promises: checks to run against it, in a corner of its own."""

from conquiet.testing.verification.findings import Finding, Verdict
from conquiet.testing.verification.runs import verify

__all__ = ["Finding", "Verdict", "verify"]
