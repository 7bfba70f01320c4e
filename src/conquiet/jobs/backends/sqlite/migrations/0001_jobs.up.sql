CREATE TABLE conquiet_jobs (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    queue TEXT NOT NULL,
    payload TEXT NOT NULL,
    priority INTEGER NOT NULL,
    state TEXT NOT NULL,
    retries INTEGER NOT NULL DEFAULT 0,
    max_retries INTEGER NOT NULL,
    waiting INTEGER NOT NULL DEFAULT 0,
    retry_at REAL,
    enqueued_at REAL NOT NULL,
    finished_at REAL,
    correlation_id TEXT,
    lease_token TEXT,
    lease_version INTEGER NOT NULL DEFAULT 0,
    lease_expires_at REAL,
    lease_ttl REAL,
    lease_worker TEXT,
    lease_started_at REAL,
    lease_expiries INTEGER NOT NULL DEFAULT 0,
    error TEXT,
    attempts TEXT NOT NULL DEFAULT '[]'
);
CREATE INDEX conquiet_jobs_ready ON conquiet_jobs (queue, priority, seq) WHERE state = 'Ready' AND NOT waiting;
CREATE INDEX conquiet_jobs_delayed ON conquiet_jobs (queue, retry_at) WHERE state = 'Ready' AND waiting;
CREATE INDEX conquiet_jobs_leased ON conquiet_jobs (queue, lease_expires_at) WHERE state = 'InFlight';
