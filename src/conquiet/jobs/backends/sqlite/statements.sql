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
FROM ({given_rows}) WHERE true
ON CONFLICT DO NOTHING;

-- name: existing
-- Returns which of these ids are taken.
SELECT value FROM json_each(:ids) WHERE value IN (SELECT id FROM conquiet_jobs);

-- name: late
-- Returns whether a delayed job that is due or a lapsed lease has to be ranked among the others.
SELECT max(EXISTS (SELECT 1 FROM conquiet_jobs WHERE state = 'Ready' AND waiting AND queue = value AND retry_at <= :now)
    OR EXISTS (SELECT 1 FROM conquiet_jobs WHERE state = 'InFlight' AND queue = value AND lease_expires_at <= :now))
FROM json_each(:queues);

-- name: claim_ready
-- The usual claim, if nothing is late: leases Ready jobs, best priority first, then oldest; where there are jobs of the same
-- priority in several queues, each queue has its turn. Returns what the caller does not already know.
WITH chosen AS MATERIALIZED (
    SELECT job.seq, job.priority, names.key AS lane,
        row_number() OVER (PARTITION BY names.key, job.priority ORDER BY job.seq) AS turn
    FROM json_each(:queues) AS names CROSS JOIN conquiet_jobs AS job ON job.seq IN (
        SELECT seq FROM conquiet_jobs WHERE state = 'Ready' AND NOT waiting AND queue = names.value
        ORDER BY priority, seq LIMIT :limit)
    ORDER BY priority, turn, lane LIMIT :limit
)
UPDATE conquiet_jobs SET
    lease_token = :token || seq,
    lease_version = lease_version + 1,
    lease_expires_at = :until,
    lease_ttl = :ttl,
    lease_worker = :worker,
    lease_started_at = :now,
    lease_begun = :begun IS NULL OR (lease_expiries = 0
        AND seq IN (SELECT seq FROM chosen ORDER BY priority, turn, lane LIMIT ifnull(:begun, 0))),
    state = 'InFlight'
WHERE seq IN (SELECT seq FROM chosen)
RETURNING seq, {leased};

-- name: claim
-- Leases the next claimable jobs: Ready and due, or with a lapsed lease, in the order of claim_ready. Each part has its
-- own index, so that neither finished nor delayed jobs are read. Of delayed jobs that are due the best priorities are read
-- first, level by level, until there are enough; of many with the same priority those that have been due for longest are
-- ranked, so that a claim does not sort a million.
WITH RECURSIVE names AS (SELECT value AS queue, key AS lane FROM json_each(:queues)),
levels (level, queue, lane) AS (
    SELECT (SELECT priority FROM conquiet_jobs AS job WHERE state = 'Ready' AND waiting AND job.queue = names.queue
        ORDER BY priority LIMIT 1) AS level, queue, lane FROM names
    UNION ALL
    SELECT (SELECT priority FROM conquiet_jobs AS job WHERE state = 'Ready' AND waiting AND job.queue = levels.queue
        AND priority > level ORDER BY priority LIMIT 1), queue, lane FROM levels WHERE level IS NOT NULL
    ORDER BY 1
),
candidates AS (
    SELECT ready.priority, ready.seq, names.lane FROM names CROSS JOIN conquiet_jobs AS ready ON ready.seq IN (
        SELECT seq FROM conquiet_jobs AS job WHERE state = 'Ready' AND NOT waiting AND job.queue = names.queue
        ORDER BY priority, seq LIMIT :limit)
    UNION ALL
    SELECT * FROM (SELECT late.priority, late.seq, levels.lane FROM levels CROSS JOIN conquiet_jobs AS late ON late.seq IN (
            SELECT seq FROM conquiet_jobs AS job WHERE state = 'Ready' AND waiting AND job.queue = levels.queue
                AND priority = level AND retry_at <= :now ORDER BY retry_at, seq LIMIT max(:limit, :ranked))
        LIMIT max(:limit, :ranked) * (SELECT count(*) FROM names))
    UNION ALL
    SELECT priority, seq, lane FROM names CROSS JOIN conquiet_jobs AS job ON job.queue = names.queue
        AND state = 'InFlight' AND lease_expires_at <= :now
),
chosen AS MATERIALIZED (
    SELECT *, row_number() OVER (PARTITION BY lane, priority ORDER BY seq) AS turn FROM candidates
    ORDER BY priority, turn, lane LIMIT :limit
)
UPDATE conquiet_jobs SET
    attempts = CASE WHEN state = 'InFlight' THEN json_insert(attempts, '$[#]', json_array(lease_version, lease_worker,
        json(printf('%!.6f', lease_started_at)), json(printf('%!.6f', lease_expires_at)), 'lease expired', NULL,
        CASE WHEN lease_begun AND lease_expiries + 1 >= :max_lease_expiries THEN 'LeaseExpired' END,
        CASE WHEN lease_begun AND lease_expiries + 1 >= :max_lease_expiries THEN printf(:expired_error, lease_expiries + 1) END))
        ELSE attempts END,
    error = CASE WHEN state = 'InFlight' AND lease_begun AND lease_expiries + 1 >= :max_lease_expiries
        THEN printf(:expired_error, lease_expiries + 1) ELSE error END,
    finished_at = CASE WHEN state = 'InFlight' AND lease_begun AND lease_expiries + 1 >= :max_lease_expiries THEN :now END,
    retry_at = CASE WHEN state = 'InFlight' AND lease_begun AND lease_expiries + 1 >= :max_lease_expiries THEN NULL ELSE retry_at END,
    lease_token = CASE WHEN state = 'InFlight' AND lease_begun AND lease_expiries + 1 >= :max_lease_expiries
        THEN NULL ELSE :token || seq END,
    lease_version = lease_version + (state = 'Ready' OR NOT lease_begun OR lease_expiries + 1 < :max_lease_expiries),
    lease_expires_at = :until,
    lease_ttl = :ttl,
    lease_worker = :worker,
    lease_started_at = :now,
    lease_begun = :begun IS NULL OR (lease_expiries + (state = 'InFlight' AND lease_begun) = 0
        AND seq IN (SELECT seq FROM chosen ORDER BY priority, turn, lane LIMIT ifnull(:begun, 0))),
    lease_expiries = lease_expiries + (state = 'InFlight' AND lease_begun),
    state = CASE WHEN state = 'InFlight' AND lease_begun AND lease_expiries + 1 >= :max_lease_expiries THEN 'Failed' ELSE 'InFlight' END
WHERE seq IN (SELECT seq FROM chosen)
RETURNING seq, {columns};

-- name: ack
-- The usual end of a lease; the same as `settle` with state Succeeded.
UPDATE conquiet_jobs SET state = 'Succeeded', waiting = 0, retry_at = NULL, finished_at = ?, lease_token = NULL,
    lease_expires_at = NULL
WHERE id = ? AND lease_token = ? AND state = 'InFlight' AND lease_expires_at > ?;

-- name: begin
-- Records that a leased job begins.
UPDATE conquiet_jobs SET lease_begun = 1
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
    attempts = CASE WHEN :state = 'Succeeded' OR :outcome = 'unbegun' THEN attempts
        ELSE json_insert(attempts, '$[#]', json_array(lease_version, lease_worker, json(printf('%!.6f', lease_started_at)),
            json(printf('%!.6f', :now)), :outcome, :category, :error_type, :error, :traceback)) END,
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
    ORDER BY priority, (SELECT key FROM json_each(:queues) WHERE value = queue), seq LIMIT 1);

-- name: heartbeat
-- Extends a current lease to now + its ttl, but never shortens it.
UPDATE conquiet_jobs
SET lease_expires_at = max(lease_expires_at, round(:now + lease_ttl, 6))
WHERE id = :id AND lease_token = :token AND state = 'InFlight' AND lease_expires_at > :now
RETURNING lease_expires_at;

-- name: get
SELECT {columns} FROM conquiet_jobs WHERE id = :id;

-- name: select
-- One page of jobs. {conditions} are those that were given, so that an index that serves them can be chosen.
SELECT seq, {columns} FROM conquiet_jobs WHERE {conditions} ORDER BY seq {order} LIMIT :limit;

-- name: stats
-- Each part is read from its own index.
SELECT CAST(queue AS TEXT), sum(ready), sum(delayed), sum(in_flight), sum(expired), sum(failed), sum(succeeded) FROM (
    SELECT queue, count(*) AS ready, 0 AS delayed, 0 AS in_flight, 0 AS expired, 0 AS failed, 0 AS succeeded
    FROM conquiet_jobs WHERE state = 'Ready' AND NOT waiting GROUP BY queue
    UNION ALL
    SELECT queue, count(*) FILTER (WHERE retry_at <= :now), count(*) FILTER (WHERE retry_at > :now), 0, 0, 0, 0
    FROM conquiet_jobs WHERE state = 'Ready' AND waiting GROUP BY queue
    UNION ALL
    SELECT queue, 0, 0, count(*) FILTER (WHERE lease_expires_at > :now), count(*) FILTER (WHERE lease_expires_at <= :now), 0, 0
    FROM conquiet_jobs WHERE state = 'InFlight' GROUP BY queue
    UNION ALL
    SELECT queue, 0, 0, 0, 0, sum(state = 'Failed'), sum(state = 'Succeeded')
    FROM conquiet_jobs WHERE state IN ('Succeeded', 'Failed') GROUP BY queue
)
WHERE :queue IS NULL OR queue = :queue GROUP BY queue ORDER BY queue;

-- name: backlog
-- Each part is read from its own index, and no further than to the limit.
SELECT count(*) FROM (
    SELECT 1 FROM conquiet_jobs WHERE queue = :queue AND state = 'Ready' AND NOT waiting
    UNION ALL
    SELECT 1 FROM conquiet_jobs WHERE queue = :queue AND state = 'Ready' AND waiting AND retry_at <= :now
    UNION ALL
    SELECT 1 FROM conquiet_jobs WHERE queue = :queue AND state = 'InFlight' AND lease_expires_at <= :now
    LIMIT :limit
);

-- name: retry
-- Makes a Failed job Ready, with all its retries.
UPDATE conquiet_jobs SET state = 'Ready', retries = 0, waiting = 0, retry_at = NULL, lease_expiries = 0, finished_at = NULL
WHERE id = :id AND state = 'Failed';

-- name: discard
DELETE FROM conquiet_jobs WHERE id = :id AND state IN ('Ready', 'Failed');

-- name: prune
-- One step.
DELETE FROM conquiet_jobs WHERE seq IN (SELECT seq FROM conquiet_jobs WHERE state IN ('Succeeded', 'Failed')
    AND finished_at <= :now - :older_than ORDER BY finished_at LIMIT :limit);

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
