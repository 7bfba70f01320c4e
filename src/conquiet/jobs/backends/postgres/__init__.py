"""Jobs in PostgreSQL."""

from conquiet.jobs.backends.postgres.connections import without_password

__all__ = ["without_password"]
