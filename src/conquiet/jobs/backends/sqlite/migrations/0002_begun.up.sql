-- Whether the job has begun under its lease: only then an expiry is charged. Leases of an older release count as begun.
ALTER TABLE conquiet_jobs ADD COLUMN lease_begun INTEGER NOT NULL DEFAULT 1;
-- Delayed jobs in the order in which they are claimed when many are due together.
CREATE INDEX conquiet_jobs_due ON conquiet_jobs (queue, priority, retry_at) WHERE state = 'Ready' AND waiting;
