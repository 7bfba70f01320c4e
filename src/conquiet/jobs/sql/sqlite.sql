-- Statements of the SQLite store. Times in the history are printed to the microsecond: JSON gives 15 digits otherwise.
-- Each runs inside one BEGIN IMMEDIATE of its operation; :now is the injected clock.

-- name: insert
-- Adds a Ready job; a second job with the same id violates the key and nothing of the batch stays.
INSERT INTO conquiet_jobs (id, queue, payload, priority, state, max_retries, waiting, retry_at,
    enqueued_at, correlation_id)
VALUES (:id, :queue, :payload, :priority, 'Ready', :max_retries, :retry_at IS NOT NULL, :retry_at, :now, :correlation_id);

-- name: existing
-- Which of these ids are taken.
SELECT value FROM json_each(:ids) WHERE value IN (SELECT id FROM conquiet_jobs);

-- name: promote
-- Delayed jobs whose time has come join the others, in the transaction of the claim that follows.
UPDATE conquiet_jobs SET waiting = 0
WHERE state = 'Ready' AND waiting AND retry_at <= :now AND queue IN (SELECT value FROM json_each(:queues));

-- name: claim
-- Leases the next claimable jobs: Ready, or with a lapsed lease, best priority first, then oldest. Each part has an
-- index of its own, so that neither finished nor delayed jobs are ever looked at.
WITH names AS (SELECT value AS queue FROM json_each(:queues)),
candidates AS (
    SELECT * FROM (SELECT id, priority, seq FROM conquiet_jobs WHERE state = 'Ready' AND NOT waiting
        AND queue IN (SELECT queue FROM names) ORDER BY priority, seq LIMIT :limit)
    UNION ALL
    SELECT id, priority, seq FROM conquiet_jobs WHERE state = 'InFlight' AND lease_expires_at <= :now
        AND queue IN (SELECT queue FROM names)
),
chosen AS (SELECT id FROM candidates ORDER BY priority, seq LIMIT :limit)
UPDATE conquiet_jobs SET
    attempts = CASE WHEN state = 'InFlight' THEN json_insert(attempts, '$[#]', json_array(lease_version,
        lease_worker, json(printf('%!.6f', lease_started_at)), json(printf('%!.6f', lease_expires_at)), 'lease expired', NULL,
        CASE WHEN lease_expiries + 1 >= :max_lease_expiries THEN 'LeaseExpired' END,
        CASE WHEN lease_expiries + 1 >= :max_lease_expiries THEN printf(:expired_error, lease_expiries + 1) END))
        ELSE attempts END,
    error = CASE WHEN state = 'InFlight' AND lease_expiries + 1 >= :max_lease_expiries
        THEN printf(:expired_error, lease_expiries + 1) ELSE error END,
    finished_at = CASE WHEN state = 'InFlight' AND lease_expiries + 1 >= :max_lease_expiries THEN :now END,
    retry_at = CASE WHEN state = 'InFlight' AND lease_expiries + 1 >= :max_lease_expiries THEN NULL ELSE retry_at END,
    lease_token = CASE WHEN state = 'InFlight' AND lease_expiries + 1 >= :max_lease_expiries
        THEN NULL ELSE lower(hex(randomblob(16))) END,
    lease_version = lease_version + (state = 'Ready' OR lease_expiries + 1 < :max_lease_expiries),
    lease_expires_at = :now + :ttl,
    lease_ttl = :ttl,
    lease_worker = :worker,
    lease_started_at = :now,
    lease_expiries = lease_expiries + (state = 'InFlight'),
    state = CASE WHEN state = 'InFlight' AND lease_expiries + 1 >= :max_lease_expiries THEN 'Failed' ELSE 'InFlight' END
WHERE id IN (SELECT id FROM chosen)
RETURNING seq, {columns};

-- name: settle
-- Ends a lease, only if the token is the current one and (unless :token_only) has not expired.
UPDATE conquiet_jobs SET
    state = :state,
    retries = retries + :retry,
    waiting = :delay IS NOT NULL,
    retry_at = :now + :delay,
    finished_at = CASE WHEN :state IN ('Succeeded', 'Failed') THEN :now END,
    error = CASE WHEN :error IS NOT NULL OR :outcome = 'failed' THEN :error ELSE error END,
    attempts = CASE WHEN :state = 'Succeeded' THEN attempts ELSE json_insert(attempts, '$[#]', json_array(
        lease_version, lease_worker, json(printf('%!.6f', lease_started_at)), json(printf('%!.6f', :now)), :outcome, :category, :error_type, :error)) END,
    lease_token = NULL,
    lease_expires_at = NULL
WHERE id = :id AND lease_token = :token AND state = 'InFlight' AND (:token_only OR lease_expires_at > :now);

-- name: heartbeat
-- Extends a current lease to now + its ttl, never shortens it.
UPDATE conquiet_jobs SET lease_expires_at = max(lease_expires_at, :now + lease_ttl)
WHERE id = :id AND lease_token = :token AND state = 'InFlight' AND lease_expires_at > :now
RETURNING lease_expires_at;

-- name: get
SELECT {columns} FROM conquiet_jobs WHERE id = :id;

-- name: select
SELECT {columns} FROM conquiet_jobs
WHERE (:state IS NULL OR state = :state) AND (:queue IS NULL OR queue = :queue) ORDER BY seq LIMIT :limit OFFSET :offset;

-- name: stats
SELECT queue,
    sum(state = 'Ready' AND (retry_at IS NULL OR retry_at <= :now)), sum(state = 'Ready' AND retry_at > :now),
    sum(state = 'InFlight' AND lease_expires_at > :now), sum(state = 'InFlight' AND lease_expires_at <= :now),
    sum(state = 'Failed'), sum(state = 'Succeeded')
FROM conquiet_jobs WHERE :queue IS NULL OR queue = :queue GROUP BY queue ORDER BY queue;

-- name: retry
-- A person gives a Failed job all its retries back.
UPDATE conquiet_jobs SET state = 'Ready', retries = 0, waiting = 0, retry_at = NULL, lease_expiries = 0, finished_at = NULL
WHERE id = :id AND state = 'Failed';

-- name: discard
DELETE FROM conquiet_jobs WHERE id = :id AND state IN ('Ready', 'Failed');

-- name: prune
DELETE FROM conquiet_jobs WHERE state IN ('Succeeded', 'Failed') AND finished_at <= :now - :older_than;

-- name: next_due
-- When the next job of these queues comes due: at once, after its delay, or when its lease lapses.
SELECT min(at) FROM (
    SELECT 0 AS at WHERE EXISTS (SELECT 1 FROM conquiet_jobs
        WHERE state = 'Ready' AND NOT waiting AND queue IN (SELECT value FROM json_each(:queues)))
    UNION ALL
    SELECT min(retry_at) AS at FROM conquiet_jobs
    WHERE state = 'Ready' AND waiting AND queue IN (SELECT value FROM json_each(:queues))
    UNION ALL
    SELECT min(lease_expires_at) FROM conquiet_jobs
    WHERE state = 'InFlight' AND queue IN (SELECT value FROM json_each(:queues))
);
