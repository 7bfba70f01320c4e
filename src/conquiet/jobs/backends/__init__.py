"""Back ends that store jobs: their interface, and how one is registered for a DSN scheme."""

from conquiet.jobs.backends.memory import open_memory
from conquiet.jobs.backends.postgres.dsn import open_postgres
from conquiet.jobs.backends.protocol import Backend, Claim, Inserted, JobRow, NewRow, Settlement
from conquiet.jobs.backends.registry import Opener, register
from conquiet.jobs.backends.sqlite.backend import open_sqlite

__all__ = ["Backend", "Claim", "Inserted", "JobRow", "NewRow", "Opener", "Settlement", "register"]

register("sqlite", open_sqlite, "sqlite:///jobs.db (or sqlite:////absolute/path.db)")
register("postgresql", open_postgres, "postgresql://user:password@host/database", pooled=True)
register("postgres", open_postgres, "postgresql://user:password@host/database", pooled=True)
register("memory", open_memory, "memory:// for tests (nothing survives the process)")
