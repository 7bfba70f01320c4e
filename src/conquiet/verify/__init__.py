"""Checks whether conquiet's guarantees hold on your server, in a scratch space on it."""

from conquiet.verify.findings import Finding, Verdict
from conquiet.verify.verification import verify

__all__ = ["Finding", "Verdict", "verify"]
