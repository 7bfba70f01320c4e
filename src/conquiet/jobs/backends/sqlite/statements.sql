-- Statements of the SQLite store. Each runs inside the BEGIN IMMEDIATE of its operation. :now comes from the injected clock;
-- all times are whole microseconds. Times in the history are printed to the microsecond, because JSON would keep 15 digits.

-- name: insert
-- Adds a Ready job. A second job with the same id violates the key, and the whole batch is rolled back.
INSERT INTO conquiet_jobs (id, queue, payload, priority, state, max_retries, waiting, retry_at, enqueued_at, correlation_id)
VALUES (?, ?, ?, ?, 'Ready', ?, ?, ?, ?, ?);

-- name: insert_selected
-- Adds Ready jobs from the rows of a query, except those whose ids are taken. (Without WHERE true SQLite would parse ON as
-- the beginning of a join condition.)
INSERT INTO conquiet_jobs (id, queue, payload, priority, state, max_retries, waiting, retry_at, enqueued_at, correlation_id)
SELECT id, :queue, payload, priority, 'Ready', :max_retries, delay_seconds > 0,
    CASE WHEN delay_seconds > 0 THEN round(:now + delay_seconds, 6) END, :now, correlation_id
FROM ({select}) WHERE true
ON CONFLICT DO NOTHING;

-- name: existing
-- Returns which of these ids are taken.
SELECT value FROM json_each(:ids) WHERE value IN (SELECT id FROM conquiet_jobs);

-- name: promote
-- Delayed jobs that are due become ordinary Ready jobs, in the transaction of the claim that follows.
UPDATE conquiet_jobs SET waiting = 0
WHERE state = 'Ready' AND waiting AND retry_at <= :now AND queue IN (SELECT value FROM json_each(:queues));

-- name: late
-- Returns whether a delayed job that is due or a lapsed lease has to be ranked among the others.
SELECT max(EXISTS (SELECT 1 FROM conquiet_jobs WHERE state = 'Ready' AND waiting AND queue = value AND retry_at <= :now)
    OR EXISTS (SELECT 1 FROM conquiet_jobs WHERE state = 'InFlight' AND queue = value AND lease_expires_at <= :now))
FROM json_each(:queues);

-- name: claim_ready
-- The usual claim, if nothing is late: leases Ready jobs, best priority first, then oldest. Returns what the caller does
-- not already know.
UPDATE conquiet_jobs SET
    lease_token = :token || seq,
    lease_version = lease_version + 1,
    lease_expires_at = :until,
    lease_ttl = :ttl,
    lease_worker = :worker,
    lease_started_at = :now,
    state = 'InFlight'
WHERE seq IN (SELECT seq FROM conquiet_jobs WHERE state = 'Ready' AND NOT waiting
    AND queue IN (SELECT value FROM json_each(:queues)) ORDER BY priority, seq LIMIT :limit)
RETURNING seq, {leased};

-- name: claim
-- Leases the next claimable jobs: Ready, or with a lapsed lease, best priority first, then oldest. Each part has its own
-- index, so that neither finished nor delayed jobs are read.
WITH names AS (SELECT value AS queue FROM json_each(:queues)),
candidates AS (
    SELECT * FROM (SELECT priority, seq FROM conquiet_jobs WHERE state = 'Ready' AND NOT waiting
        AND queue IN (SELECT queue FROM names) ORDER BY priority, seq LIMIT :limit)
    UNION ALL
    SELECT priority, seq FROM conquiet_jobs WHERE state = 'InFlight' AND lease_expires_at <= :now
        AND queue IN (SELECT queue FROM names)
),
chosen AS (SELECT seq FROM candidates ORDER BY priority, seq LIMIT :limit)
UPDATE conquiet_jobs SET
    attempts = CASE WHEN state = 'InFlight' THEN json_insert(attempts, '$[#]', json_array(lease_version, lease_worker,
        json(printf('%!.6f', lease_started_at)), json(printf('%!.6f', lease_expires_at)), 'lease expired', NULL,
        CASE WHEN lease_expiries + 1 >= :max_lease_expiries THEN 'LeaseExpired' END,
        CASE WHEN lease_expiries + 1 >= :max_lease_expiries THEN printf(:expired_error, lease_expiries + 1) END))
        ELSE attempts END,
    error = CASE WHEN state = 'InFlight' AND lease_expiries + 1 >= :max_lease_expiries
        THEN printf(:expired_error, lease_expiries + 1) ELSE error END,
    finished_at = CASE WHEN state = 'InFlight' AND lease_expiries + 1 >= :max_lease_expiries THEN :now END,
    retry_at = CASE WHEN state = 'InFlight' AND lease_expiries + 1 >= :max_lease_expiries THEN NULL ELSE retry_at END,
    lease_token = CASE WHEN state = 'InFlight' AND lease_expiries + 1 >= :max_lease_expiries
        THEN NULL ELSE :token || seq END,
    lease_version = lease_version + (state = 'Ready' OR lease_expiries + 1 < :max_lease_expiries),
    lease_expires_at = :until,
    lease_ttl = :ttl,
    lease_worker = :worker,
    lease_started_at = :now,
    lease_expiries = lease_expiries + (state = 'InFlight'),
    state = CASE WHEN state = 'InFlight' AND lease_expiries + 1 >= :max_lease_expiries THEN 'Failed' ELSE 'InFlight' END
WHERE seq IN (SELECT seq FROM chosen)
RETURNING seq, {columns};

-- name: ack
-- The usual end of a lease; the same as `settle` with state Succeeded.
UPDATE conquiet_jobs SET state = 'Succeeded', waiting = 0, retry_at = NULL, finished_at = ?, lease_token = NULL,
    lease_expires_at = NULL
WHERE id = ? AND lease_token = ? AND state = 'InFlight' AND lease_expires_at > ?;

-- name: settle
-- Ends a lease if the token is current and (unless :token_only) has not expired.
UPDATE conquiet_jobs SET
    state = :state,
    retries = retries + :retry,
    waiting = :retry_at IS NOT NULL,
    retry_at = :retry_at,
    finished_at = CASE WHEN :state IN ('Succeeded', 'Failed') THEN :now END,
    error = CASE WHEN :error IS NOT NULL OR :outcome = 'failed' THEN :error ELSE error END,
    attempts = CASE WHEN :state = 'Succeeded' THEN attempts
        ELSE json_insert(attempts, '$[#]', json_array(lease_version, lease_worker, json(printf('%!.6f', lease_started_at)),
            json(printf('%!.6f', :now)), :outcome, :category, :error_type, :error)) END,
    lease_token = NULL,
    lease_expires_at = NULL
WHERE id = :id AND lease_token = :token AND state = 'InFlight' AND (:token_only OR lease_expires_at > :now);

-- name: set_aside
-- Fails a leased job whose row cannot be read. Its history is not changed.
UPDATE conquiet_jobs SET state = 'Failed', error = :reason, finished_at = :now, lease_token = NULL, lease_expires_at = NULL
WHERE id = :id AND lease_token = :token;

-- name: set_aside_next
-- Like set_aside, for the job that would be claimed next and whose row makes the claim fail.
UPDATE conquiet_jobs SET state = 'Failed', error = :reason, finished_at = :now, lease_token = NULL, lease_expires_at = NULL
WHERE seq = (SELECT seq FROM conquiet_jobs WHERE queue IN (SELECT value FROM json_each(:queues))
    AND (state = 'Ready' AND (NOT waiting OR retry_at <= :now) OR state = 'InFlight' AND lease_expires_at <= :now)
    ORDER BY priority, seq LIMIT 1);

-- name: heartbeat
-- Extends a current lease to now + its ttl, but never shortens it.
UPDATE conquiet_jobs
SET lease_expires_at = max(lease_expires_at, round(:now + lease_ttl, 6))
WHERE id = :id AND lease_token = :token AND state = 'InFlight' AND lease_expires_at > :now
RETURNING lease_expires_at;

-- name: get
SELECT {columns} FROM conquiet_jobs WHERE id = :id;

-- name: select
SELECT {columns} FROM conquiet_jobs
WHERE (:state IS NULL OR state = :state) AND (:queue IS NULL OR queue = :queue) ORDER BY seq LIMIT :limit OFFSET :offset;

-- name: stats
SELECT CAST(queue AS TEXT),
    count(*) FILTER (WHERE state = 'Ready' AND (retry_at IS NULL OR retry_at <= :now)),
    count(*) FILTER (WHERE state = 'Ready' AND retry_at > :now),
    count(*) FILTER (WHERE state = 'InFlight' AND lease_expires_at > :now),
    count(*) FILTER (WHERE state = 'InFlight' AND lease_expires_at <= :now),
    count(*) FILTER (WHERE state = 'Failed'), count(*) FILTER (WHERE state = 'Succeeded')
FROM conquiet_jobs WHERE :queue IS NULL OR queue = :queue GROUP BY queue ORDER BY queue;

-- name: retry
-- Makes a Failed job Ready, with all its retries.
UPDATE conquiet_jobs SET state = 'Ready', retries = 0, waiting = 0, retry_at = NULL, lease_expiries = 0, finished_at = NULL
WHERE id = :id AND state = 'Failed';

-- name: discard
DELETE FROM conquiet_jobs WHERE id = :id AND state IN ('Ready', 'Failed');

-- name: prune
DELETE FROM conquiet_jobs WHERE state IN ('Succeeded', 'Failed') AND finished_at <= :now - :older_than;

-- name: next_due
-- When the next job of these queues is due: immediately, after its delay, or when its lease lapses. Reads the first row of
-- each index.
SELECT min(at) FROM (
    SELECT (SELECT 0 FROM conquiet_jobs WHERE state = 'Ready' AND NOT waiting AND queue = value
        ORDER BY priority, seq LIMIT 1) AS at FROM json_each(:queues)
    UNION ALL
    SELECT (SELECT retry_at FROM conquiet_jobs WHERE state = 'Ready' AND waiting AND queue = value
        ORDER BY retry_at LIMIT 1) FROM json_each(:queues)
    UNION ALL
    SELECT (SELECT lease_expires_at FROM conquiet_jobs WHERE state = 'InFlight' AND queue = value
        ORDER BY lease_expires_at LIMIT 1) FROM json_each(:queues)
);
