"""Where jobs are kept: the protocol of a back end, and those that come with conquiet."""

from conquiet.jobs.backends.protocol import Backend, Claim, Inserted, JobRow, NewRow, Settlement

__all__ = ["Backend", "Claim", "Inserted", "JobRow", "NewRow", "Settlement"]
