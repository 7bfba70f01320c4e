"""Whether a server of yours keeps what conquiet promises: checks that run in a scratch space on it."""

from conquiet.verify.findings import Finding, Verdict
from conquiet.verify.verification import verify

__all__ = ["Finding", "Verdict", "verify"]
