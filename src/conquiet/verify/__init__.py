"""Whether a server of yours keeps what conquiet promises: checks to run against it, in a corner of its own."""

from conquiet.verify.findings import Finding, Verdict
from conquiet.verify.runs import verify

__all__ = ["Finding", "Verdict", "verify"]
