-- Statements of the PostgreSQL store. Each is one statement and one transaction. The time is clock_timestamp(), because
-- now() does not advance inside a caller's transaction.

-- name: insert
-- Adds Ready jobs, or none if an id is taken, and notifies the listening workers once. Returns the time.
WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS now, pg_notify('conquiet_jobs', %(queue)s)),
added AS (
    {insert}
)
SELECT date_part('epoch', now) FROM clock;

-- name: insert_new
-- Like insert, but leaves out jobs whose ids are taken. Returns the time and each id added, or only the time.
WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS now, pg_notify('conquiet_jobs', %(queue)s)),
added AS (
    {insert}
    ON CONFLICT DO NOTHING RETURNING id
)
SELECT date_part('epoch', now), added.id FROM clock LEFT JOIN added ON true;

-- name: insert_part
-- Used in insert and insert_new.
INSERT INTO conquiet_jobs (id, queue, payload, priority, state, max_retries, waiting, retry_at, enqueued_at,
    correlation_id)
SELECT id, %(queue)s, payload, priority, 'Ready', max_retries, coalesce(delay, 0) > 0,
    CASE WHEN delay > 0 THEN clock.now + delay * interval '1 second' END, clock.now, correlation_id
FROM clock, unnest(%(ids)s::text[], %(payloads)s::text[], %(priorities)s::int[], %(delays)s::float8[],
        %(max_retries)s::int[], %(correlation_ids)s::text[])
        WITH ORDINALITY AS new (id, payload, priority, delay, max_retries, correlation_id, place)
ORDER BY place;

-- name: insert_selected
-- Adds Ready jobs from the rows of a query, all or none, and notifies the listening workers once.
WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS now, pg_notify('conquiet_jobs', %(queue)s))
INSERT INTO conquiet_jobs (id, queue, payload, priority, state, max_retries, waiting, retry_at, enqueued_at,
    correlation_id)
SELECT id, %(queue)s, payload, priority, 'Ready', %(max_retries)s, delay_seconds > 0,
    CASE WHEN delay_seconds > 0 THEN clock.now + delay_seconds * interval '1 second' END, clock.now, correlation_id
FROM clock, ({select}) AS new;

-- name: existing
SELECT id FROM conquiet_jobs WHERE id = ANY(%(ids)s::text[]);

-- name: claim_ready
-- The usual, fast claim: leases Ready jobs, best priority first, then oldest. It leases none if a delayed job that is due
-- or a lapsed lease has to be ranked among them; then `claim` is used. Returns what the caller does not already know.
WITH ready AS (
    SELECT job.* FROM unnest(%(queues)s::text[]) AS name CROSS JOIN LATERAL (
        SELECT ctid AS place, priority, seq FROM conquiet_jobs
        WHERE state = 'Ready' AND NOT waiting AND queue = name
        ORDER BY priority, seq LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED) AS job
    -- The first row of each, in index order: EXISTS with a bound would be planned as a scan of the table.
    WHERE coalesce((SELECT min(least(
            (SELECT lease_expires_at FROM conquiet_jobs WHERE state = 'InFlight' AND queue = name
                ORDER BY lease_expires_at LIMIT 1),
            (SELECT retry_at FROM conquiet_jobs WHERE state = 'Ready' AND waiting AND queue = name
                ORDER BY retry_at LIMIT 1)))
        FROM unnest(%(queues)s::text[]) AS name), 'infinity') > (SELECT clock_timestamp())
)
UPDATE conquiet_jobs AS job SET
    state = 'InFlight',
    lease_token = %(token)s || seq,
    lease_version = lease_version + 1,
    lease_expires_at = (SELECT clock_timestamp()) + %(ttl)s * interval '1 second',
    lease_ttl = %(ttl)s,
    lease_worker = %(worker)s,
    lease_started_at = (SELECT clock_timestamp())
WHERE ctid = ANY(ARRAY(SELECT place FROM ready ORDER BY priority, seq LIMIT %(limit)s))
RETURNING job.seq, {leased};

-- name: claim
-- Leases the next claimable jobs: Ready and due, or with a lapsed lease, best priority first, then oldest. Rows that
-- another claim has locked are skipped. Each part has its own partial index, so that neither finished nor delayed
-- jobs are read. It is (SELECT clock_timestamp()) because an index cannot be searched for a volatile value.
WITH ready AS (
    SELECT job.*, false AS lapsed FROM unnest(%(queues)s::text[]) AS name CROSS JOIN LATERAL (
        SELECT ctid AS place, priority, seq FROM conquiet_jobs
        WHERE state = 'Ready' AND NOT waiting AND queue = name
        ORDER BY priority, seq LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED) AS job
), due AS (
    SELECT job.*, false FROM unnest(%(queues)s::text[]) AS name CROSS JOIN LATERAL (
        SELECT ctid, priority, seq FROM conquiet_jobs
        WHERE state = 'Ready' AND waiting AND queue = name AND retry_at <= (SELECT clock_timestamp())
        ORDER BY priority, seq LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED) AS job
), expired AS (
    SELECT job.*, true FROM unnest(%(queues)s::text[]) AS name CROSS JOIN LATERAL (
        SELECT ctid, priority, seq FROM conquiet_jobs
        WHERE state = 'InFlight' AND queue = name AND lease_expires_at <= (SELECT clock_timestamp())
        ORDER BY priority, seq LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED) AS job
), chosen AS MATERIALIZED (
    SELECT place, lapsed FROM (TABLE ready UNION ALL TABLE due UNION ALL TABLE expired) AS job
    ORDER BY priority, seq LIMIT %(limit)s
), fresh AS (
    UPDATE conquiet_jobs AS job SET
        state = 'InFlight',
        lease_token = %(token)s || seq,
        lease_version = lease_version + 1,
        lease_expires_at = clock_timestamp() + %(ttl)s * interval '1 second',
        lease_ttl = %(ttl)s,
        lease_worker = %(worker)s,
        lease_started_at = clock_timestamp()
    WHERE ctid = ANY(ARRAY(SELECT place FROM chosen WHERE NOT lapsed))
    RETURNING job.seq, job.waiting, {columns}
), again AS (
    -- The previous lease has lapsed: that goes into the history, and the job is Failed if it has happened too often.
    UPDATE conquiet_jobs AS job SET
        state = CASE WHEN lease_expiries + 1 >= %(max_lease_expiries)s THEN 'Failed' ELSE 'InFlight' END,
        attempts = attempts || jsonb_build_array(jsonb_build_array(lease_version, lease_worker,
            date_part('epoch', lease_started_at), date_part('epoch', lease_expires_at), 'lease expired', NULL,
            CASE WHEN lease_expiries + 1 >= %(max_lease_expiries)s THEN 'LeaseExpired' END,
            CASE WHEN lease_expiries + 1 >= %(max_lease_expiries)s
                THEN format(%(expired_error)s, lease_expiries + 1) END)),
        error = CASE WHEN lease_expiries + 1 >= %(max_lease_expiries)s
            THEN format(%(expired_error)s, lease_expiries + 1) ELSE error END,
        finished_at = CASE WHEN lease_expiries + 1 >= %(max_lease_expiries)s THEN clock_timestamp() END,
        retry_at = CASE WHEN lease_expiries + 1 < %(max_lease_expiries)s THEN retry_at END,
        lease_token = CASE WHEN lease_expiries + 1 < %(max_lease_expiries)s THEN %(token)s || seq END,
        lease_version = lease_version + (lease_expiries + 1 < %(max_lease_expiries)s)::int,
        lease_expires_at = clock_timestamp() + %(ttl)s * interval '1 second',
        lease_ttl = %(ttl)s,
        lease_worker = %(worker)s,
        lease_started_at = clock_timestamp(),
        lease_expiries = lease_expiries + 1
    WHERE ctid = ANY(ARRAY(SELECT place FROM chosen WHERE lapsed))
    RETURNING job.seq, job.waiting, {columns}
)
TABLE fresh UNION ALL TABLE again;

-- name: promote
-- Delayed jobs that are due become ordinary Ready jobs, so that claims need not sort them separately.
UPDATE conquiet_jobs SET waiting = false
WHERE id IN (SELECT id FROM conquiet_jobs WHERE state = 'Ready' AND waiting AND queue = ANY(%(queues)s)
    AND retry_at <= (SELECT clock_timestamp()) LIMIT 10000 FOR NO KEY UPDATE SKIP LOCKED);

-- name: ack
-- Marks jobs as Succeeded if the token is current and has not expired. The last attempt is not written to the history:
-- worker, start and end are already in the row.
UPDATE conquiet_jobs AS job SET state = 'Succeeded', finished_at = clock_timestamp(), lease_token = NULL,
    lease_expires_at = NULL, retry_at = NULL
FROM unnest(%(ids)s::text[], %(tokens)s::text[]) WITH ORDINALITY AS done (id, token, place)
WHERE job.id = done.id AND job.lease_token = done.token AND job.state = 'InFlight'
    AND job.lease_expires_at > clock_timestamp()
RETURNING done.place;

-- name: settle
-- Ends leases in any way if the token is current and has not expired. Waiting workers are notified of jobs that are Ready
-- again without delay.
WITH ended AS (
UPDATE conquiet_jobs AS job SET
    state = done.state,
    retries = job.retries + done.retry,
    waiting = done.delay IS NOT NULL,
    retry_at = clock.now + done.delay * interval '1 second',
    finished_at = CASE WHEN done.state IN ('Succeeded', 'Failed') THEN clock.now END,
    error = CASE WHEN done.error IS NOT NULL OR done.outcome = 'failed' THEN done.error ELSE job.error END,
    attempts = job.attempts || jsonb_build_array(jsonb_build_array(job.lease_version, job.lease_worker,
        date_part('epoch', job.lease_started_at), date_part('epoch', clock.now),
        done.outcome, done.category, done.error_type, done.error)),
    lease_token = NULL,
    lease_expires_at = NULL
FROM unnest(%(ids)s::text[], %(tokens)s::text[], %(states)s::text[], %(outcomes)s::text[], %(retries)s::int[],
        %(delays)s::float8[], %(errors)s::text[], %(error_types)s::text[], %(categories)s::text[])
        WITH ORDINALITY AS done (id, token, state, outcome, retry, delay, error, error_type, category, place),
    (SELECT clock_timestamp() AS now) AS clock
WHERE job.id = done.id AND job.lease_token = done.token AND job.state = 'InFlight'
    AND job.lease_expires_at > clock_timestamp()
RETURNING done.place, job.queue, done.state = 'Ready' AND done.delay IS NULL AS ready
), woken AS (
    SELECT pg_notify('conquiet_jobs', queue) FROM (SELECT DISTINCT queue FROM ended WHERE ready) AS queues
)
SELECT ended.place FROM ended CROSS JOIN (SELECT count(*) FROM woken) AS told;

-- name: set_aside
-- Fails a leased job whose row cannot be read. Its history is not changed.
UPDATE conquiet_jobs SET state = 'Failed', error = %(reason)s, finished_at = clock_timestamp(), lease_token = NULL,
    lease_expires_at = NULL
WHERE id = %(id)s AND lease_token = %(token)s;

-- name: set_aside_next
-- Like set_aside, for the job that would be claimed next and whose row makes the claim fail.
UPDATE conquiet_jobs SET state = 'Failed', error = %(reason)s, finished_at = clock_timestamp(), lease_token = NULL,
    lease_expires_at = NULL
WHERE id = (SELECT id FROM conquiet_jobs WHERE queue = ANY(%(queues)s::text[])
    AND (state = 'Ready' AND (NOT waiting OR retry_at <= clock_timestamp())
        OR state = 'InFlight' AND lease_expires_at <= clock_timestamp())
    ORDER BY priority, seq LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED);

-- name: heartbeat
-- Extends current leases to now + their ttl, but never shortens one. It does not wait for locks, so it cannot take part in
-- a deadlock: a row that is being settled at this moment is not changed, and its lease counts as current.
WITH held (id, token) AS (SELECT * FROM unnest(%(ids)s::text[], %(tokens)s::text[])),
free AS (
    SELECT job.id FROM conquiet_jobs AS job JOIN held ON job.id = held.id AND job.lease_token = held.token
    WHERE job.state = 'InFlight' AND job.lease_expires_at > clock_timestamp() FOR NO KEY UPDATE OF job SKIP LOCKED
), extended AS (
    UPDATE conquiet_jobs AS job
    SET lease_expires_at = greatest(job.lease_expires_at, clock_timestamp() + job.lease_ttl * interval '1 second')
    FROM free WHERE job.id = free.id RETURNING job.lease_token, job.lease_expires_at
)
SELECT lease_token, date_part('epoch', lease_expires_at) FROM extended
UNION ALL
SELECT job.lease_token, date_part('epoch', job.lease_expires_at)
FROM conquiet_jobs AS job JOIN held ON job.id = held.id AND job.lease_token = held.token
WHERE job.state = 'InFlight' AND job.lease_expires_at > clock_timestamp();

-- name: get
SELECT {columns} FROM conquiet_jobs AS job WHERE id = %(id)s;

-- name: select
SELECT {columns} FROM conquiet_jobs AS job
WHERE (%(state)s::text IS NULL OR state = %(state)s) AND (%(queue)s::text IS NULL OR queue = %(queue)s)
ORDER BY seq LIMIT %(limit)s OFFSET %(offset)s;

-- name: stats
SELECT queue,
    count(*) FILTER (WHERE state = 'Ready' AND (retry_at IS NULL OR retry_at <= clock_timestamp())),
    count(*) FILTER (WHERE state = 'Ready' AND retry_at > clock_timestamp()),
    count(*) FILTER (WHERE state = 'InFlight' AND lease_expires_at > clock_timestamp()),
    count(*) FILTER (WHERE state = 'InFlight' AND lease_expires_at <= clock_timestamp()),
    count(*) FILTER (WHERE state = 'Failed'), count(*) FILTER (WHERE state = 'Succeeded')
FROM conquiet_jobs WHERE %(queue)s::text IS NULL OR queue = %(queue)s GROUP BY queue ORDER BY queue;

-- name: retry
-- Makes a Failed job Ready, with all its retries.
WITH done AS (
    UPDATE conquiet_jobs SET state = 'Ready', retries = 0, waiting = false, retry_at = NULL, lease_expiries = 0,
        finished_at = NULL
    WHERE id = %(id)s AND state = 'Failed' RETURNING queue
)
SELECT pg_notify('conquiet_jobs', queue) FROM done;

-- name: discard
DELETE FROM conquiet_jobs WHERE id = %(id)s AND state IN ('Ready', 'Failed');

-- name: prune
DELETE FROM conquiet_jobs
WHERE state IN ('Succeeded', 'Failed') AND finished_at <= clock_timestamp() - %(older_than)s * interval '1 second';

-- name: next_due
-- Seconds until the next job of these queues is due: immediately, after its delay, or when its lease lapses. Reads the
-- first row of each index. (Subtracted as numbers: there is no interval from now to infinity.)
SELECT date_part('epoch', min(at)) - date_part('epoch', clock_timestamp()) FROM unnest(%(queues)s::text[]) AS name CROSS JOIN LATERAL (
    (SELECT timestamptz '1970-01-01' AS at FROM conquiet_jobs WHERE state = 'Ready' AND NOT waiting AND queue = name
        ORDER BY priority, seq LIMIT 1)
    UNION ALL
    (SELECT retry_at FROM conquiet_jobs WHERE state = 'Ready' AND waiting AND queue = name ORDER BY retry_at LIMIT 1)
    UNION ALL
    (SELECT lease_expires_at FROM conquiet_jobs WHERE state = 'InFlight' AND queue = name
        ORDER BY lease_expires_at LIMIT 1)
) AS due;
