CREATE TABLE conquiet_jobs (
    id text COLLATE "C" PRIMARY KEY,
    seq bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    queue text COLLATE "C" NOT NULL,
    payload text NOT NULL,
    priority int NOT NULL,
    state text NOT NULL CHECK (state IN ('Ready', 'InFlight', 'Failed', 'Succeeded')),
    retries int NOT NULL DEFAULT 0,
    max_retries int NOT NULL,
    waiting boolean NOT NULL DEFAULT false,
    retry_at timestamptz,
    enqueued_at timestamptz NOT NULL,
    finished_at timestamptz,
    correlation_id text,
    lease_token text,
    lease_version int NOT NULL DEFAULT 0,
    lease_expires_at timestamptz,
    lease_ttl float8,
    lease_worker text,
    lease_started_at timestamptz,
    lease_expiries int NOT NULL DEFAULT 0,
    error text,
    attempts jsonb NOT NULL DEFAULT '[]'
);
CREATE INDEX conquiet_jobs_ready ON conquiet_jobs (queue, priority, seq) WHERE state = 'Ready' AND NOT waiting;
CREATE INDEX conquiet_jobs_delayed ON conquiet_jobs (queue, retry_at) WHERE state = 'Ready' AND waiting;
CREATE INDEX conquiet_jobs_leased ON conquiet_jobs (queue, lease_expires_at) WHERE state = 'InFlight';
