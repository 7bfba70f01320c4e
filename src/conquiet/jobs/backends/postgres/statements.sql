-- Statements of the PostgreSQL store. Each is one statement and one transaction. The time is clock_timestamp(), because
-- now() does not advance inside a caller's transaction.

-- name: insert
-- Adds Ready jobs, or none if an id is taken, and notifies listening workers if a channel is given. Returns the time.
WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS now,
    CASE WHEN %(channel)s::text IS NOT NULL THEN pg_notify(%(channel)s, '') END),
added AS (
    {insert_part}
)
SELECT date_part('epoch', now), {enqueue_found} FROM clock;

-- name: insert_new
-- Like insert, but leaves out jobs whose ids are taken. Returns the time and each id added, or only the time.
WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS now,
    CASE WHEN %(channel)s::text IS NOT NULL THEN pg_notify(%(channel)s, '') END),
added AS (
    {insert_part}
    ON CONFLICT DO NOTHING RETURNING id
)
SELECT date_part('epoch', now), added.id, {enqueue_found} FROM clock LEFT JOIN added ON true;

-- name: insert_part
-- Used in insert and insert_new.
INSERT INTO conquiet_jobs (id, queue, payload, priority, state, max_retries, waiting, retry_at, enqueued_at,
    correlation_id)
SELECT id, %(queue)s, payload, priority, 'Ready', max_retries, coalesce(delay > 0 OR to_timestamp(at) > clock.now, false),
    CASE WHEN delay > 0 THEN clock.now + delay * interval '1 second'
        WHEN to_timestamp(at) > clock.now THEN to_timestamp(at) END, clock.now, correlation_id
FROM clock, unnest(%(ids)s::text[], %(payloads)s::text[], %(priorities)s::int[], %(delays)s::float8[],
        %(max_retries)s::int[], %(correlation_ids)s::text[], %(ats)s::float8[])
        WITH ORDINALITY AS new (id, payload, priority, delay, max_retries, correlation_id, at, place)
ORDER BY place;

-- name: insert_selected
-- Adds Ready jobs from the rows of a query, all or none, and notifies the listening workers once.
WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS now, pg_notify(%(channel)s, ''))
INSERT INTO conquiet_jobs (id, queue, payload, priority, state, max_retries, waiting, retry_at, enqueued_at,
    correlation_id)
SELECT id, %(queue)s, payload, priority, 'Ready', %(max_retries)s, delay_seconds > 0,
    CASE WHEN delay_seconds > 0 THEN clock.now + delay_seconds * interval '1 second' END, clock.now, correlation_id
FROM clock, ({given_rows}) AS new;

-- name: notify
-- Notifies the channels on which somebody waits, and returns them: see listener.py. At its commit a notification holds a lock
-- that all notifying transactions share, so it does not wait for the disk.
SELECT channel, set_config('synchronous_commit', 'off', true), pg_notify(channel, '')
FROM unnest(%(channels)s::text[], %(places)s::int[]) AS told (channel, place) WHERE {waited};

-- name: enqueue_found
-- The last column of what insert and insert_new return: whether somebody waits, evaluated once, before the commit.
(SELECT {waited} FROM (VALUES (%(place)s::int)) AS queue (place));

-- name: existing
SELECT id FROM conquiet_jobs WHERE id = ANY(%(ids)s::text[]);

-- name: claim_ready
-- The usual, fast claim: leases Ready jobs, best priority first, then oldest; where there are jobs of the same priority in
-- several queues, each queue has its turn. It leases none if a delayed job that is due or a lapsed lease has to be ranked
-- among them; then `claim` is used. Returns what the caller does not already know.
WITH ready AS (
    SELECT job.*, row_number() OVER (PARTITION BY lane, priority ORDER BY seq) AS turn, lane
    FROM unnest(%(queues)s::text[]) WITH ORDINALITY AS queues (name, lane) CROSS JOIN LATERAL (
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
{leases};

-- name: leases
-- Used in claim_ready and claim_onward: leases the first of `ready`.
UPDATE conquiet_jobs AS job SET
    state = 'InFlight',
    lease_token = %(token)s || seq,
    lease_version = lease_version + 1,
    lease_expires_at = (SELECT clock_timestamp()) + %(ttl)s * interval '1 second',
    lease_ttl = %(ttl)s,
    lease_worker = %(worker)s,
    lease_started_at = (SELECT clock_timestamp()),
    lease_begun = %(begun)s::int IS NULL OR (lease_expiries = 0
        AND seq IN (SELECT seq FROM ready ORDER BY priority, turn, lane LIMIT %(begun)s::int))
WHERE ctid = ANY(ARRAY(SELECT place FROM ready ORDER BY priority, turn, lane LIMIT %(limit)s))
RETURNING job.seq, {leased};

-- name: claim_onward
-- Like claim_ready, but it begins after the last job claimed here at each level of priority, and does not look for delayed
-- jobs and lapsed leases (see cursors.py). So it does not pass over the dead rows of all jobs claimed since the oldest
-- snapshot that is still open.
WITH ready AS (
    SELECT job.*, row_number() OVER (PARTITION BY lane, priority ORDER BY seq) AS turn, lane
    FROM unnest(%(lanes)s::int[], %(names)s::text[], %(levels)s::int[], %(seqs)s::bigint[], %(ends)s::int[])
        AS range (lane, name, level, after, until) CROSS JOIN LATERAL (
        SELECT ctid AS place, priority, seq FROM conquiet_jobs
        WHERE state = 'Ready' AND NOT waiting AND queue = name AND (priority, seq) > (level, after) AND priority <= until
        ORDER BY priority, seq LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED) AS job
)
{leases};

-- name: claim
-- Leases the next claimable jobs: Ready and due, or with a lapsed lease, in the order of claim_ready. Rows that another
-- claim has locked are skipped. Each part has its own partial index, so that neither finished nor delayed
-- jobs are read. It is (SELECT clock_timestamp()) because an index cannot be searched for a volatile value.
WITH ready AS (
    SELECT job.*, lane, false AS lapsed FROM unnest(%(queues)s::text[]) WITH ORDINALITY AS queues (name, lane) CROSS JOIN LATERAL (
        SELECT ctid AS place, priority, seq FROM conquiet_jobs
        WHERE state = 'Ready' AND NOT waiting AND queue = name
        ORDER BY priority, seq LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED) AS job
), due AS (
    -- Best priority first: the levels are walked one by one, until there are enough. Of many jobs with the same priority
    -- those that have been due for longest are ranked, so that a claim does not sort a million.
    SELECT job.*, lane, false FROM unnest(%(queues)s::text[]) WITH ORDINALITY AS queues (name, lane) CROSS JOIN LATERAL (
        WITH RECURSIVE levels AS (
            (SELECT priority AS level FROM conquiet_jobs WHERE state = 'Ready' AND waiting AND queue = name
                ORDER BY priority LIMIT 1)
            UNION ALL
            SELECT (SELECT priority FROM conquiet_jobs WHERE state = 'Ready' AND waiting AND queue = name
                AND priority > level ORDER BY priority LIMIT 1) FROM levels WHERE level IS NOT NULL
        )
        SELECT late.* FROM levels CROSS JOIN LATERAL (
            SELECT ctid, priority, seq FROM conquiet_jobs
            WHERE state = 'Ready' AND waiting AND queue = name AND priority = level
                AND retry_at <= (SELECT clock_timestamp())
            ORDER BY retry_at, seq LIMIT greatest(%(limit)s, %(ranked)s) FOR NO KEY UPDATE SKIP LOCKED) AS late
        LIMIT greatest(%(limit)s, %(ranked)s)) AS job
), expired AS (
    SELECT job.*, lane, true FROM unnest(%(queues)s::text[]) WITH ORDINALITY AS queues (name, lane) CROSS JOIN LATERAL (
        SELECT ctid, priority, seq FROM conquiet_jobs
        WHERE state = 'InFlight' AND queue = name AND lease_expires_at <= (SELECT clock_timestamp())
        ORDER BY priority, seq LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED) AS job
), chosen AS MATERIALIZED (
    SELECT *, row_number() OVER (PARTITION BY lane, priority ORDER BY seq) AS turn
    FROM (TABLE ready UNION ALL TABLE due UNION ALL TABLE expired) AS job
    ORDER BY priority, turn, lane LIMIT %(limit)s
), begins AS (
    SELECT seq FROM chosen ORDER BY priority, turn, lane LIMIT %(begun)s::int
), fresh AS (
    UPDATE conquiet_jobs AS job SET
        state = 'InFlight',
        lease_token = %(token)s || seq,
        lease_version = lease_version + 1,
        lease_expires_at = clock_timestamp() + %(ttl)s * interval '1 second',
        lease_ttl = %(ttl)s,
        lease_worker = %(worker)s,
        lease_started_at = clock_timestamp(),
        lease_begun = %(begun)s::int IS NULL OR (lease_expiries = 0 AND seq IN (TABLE begins))
    WHERE ctid = ANY(ARRAY(SELECT place FROM chosen WHERE NOT lapsed))
    RETURNING job.seq, job.waiting, {columns}
), again AS (
    -- The previous lease has lapsed: that goes into the history. If the job had begun it is charged, and Failed if that has
    -- happened too often.
    UPDATE conquiet_jobs AS job SET
        state = CASE WHEN lease_begun AND lease_expiries + 1 >= %(max_lease_expiries)s THEN 'Failed' ELSE 'InFlight' END,
        attempts = attempts || jsonb_build_array(jsonb_build_array(lease_version, lease_worker,
            date_part('epoch', lease_started_at), date_part('epoch', lease_expires_at), 'lease expired', NULL,
            CASE WHEN lease_begun AND lease_expiries + 1 >= %(max_lease_expiries)s THEN 'LeaseExpired' END,
            CASE WHEN lease_begun AND lease_expiries + 1 >= %(max_lease_expiries)s
                THEN format(%(expired_error)s, lease_expiries + 1) END)),
        error = CASE WHEN lease_begun AND lease_expiries + 1 >= %(max_lease_expiries)s
            THEN format(%(expired_error)s, lease_expiries + 1) ELSE error END,
        finished_at = CASE WHEN lease_begun AND lease_expiries + 1 >= %(max_lease_expiries)s THEN clock_timestamp() END,
        retry_at = CASE WHEN NOT lease_begun OR lease_expiries + 1 < %(max_lease_expiries)s THEN retry_at END,
        lease_token = CASE WHEN NOT lease_begun OR lease_expiries + 1 < %(max_lease_expiries)s THEN %(token)s || seq END,
        lease_version = lease_version + (NOT lease_begun OR lease_expiries + 1 < %(max_lease_expiries)s)::int,
        lease_expires_at = clock_timestamp() + %(ttl)s * interval '1 second',
        lease_ttl = %(ttl)s,
        lease_worker = %(worker)s,
        lease_started_at = clock_timestamp(),
        lease_begun = %(begun)s::int IS NULL OR (lease_expiries + lease_begun::int = 0 AND seq IN (TABLE begins)),
        lease_expiries = lease_expiries + lease_begun::int
    WHERE ctid = ANY(ARRAY(SELECT place FROM chosen WHERE lapsed))
    RETURNING job.seq, job.waiting, {columns}
), counted AS (
    INSERT INTO conquiet_counts SELECT queue, 'Failed', count(*) FROM again WHERE state = 'Failed' GROUP BY queue
)
TABLE fresh UNION ALL TABLE again;

-- name: ack
-- Marks jobs as Succeeded if the token is current and has not expired. The last attempt is not written to the history:
-- worker, start and end are already in the row.
WITH done AS (
    {acked}
), counted AS (
    INSERT INTO conquiet_counts SELECT queue, 'Succeeded', count(*) FROM done GROUP BY queue
)
SELECT place FROM done;

-- name: acked
-- Used in ack and ack_and_begin.
UPDATE conquiet_jobs AS job SET state = 'Succeeded', finished_at = clock_timestamp(), lease_token = NULL,
    lease_expires_at = NULL, retry_at = NULL
FROM unnest(%(ids)s::text[], %(tokens)s::text[]) WITH ORDINALITY AS done (id, token, place)
WHERE job.id = done.id AND job.lease_token = done.token AND {current}
RETURNING done.place, job.queue;

-- name: current
-- Whether a lease counts. The state is not compared as it stands, so that jobs are found by their ids only: the planner would
-- else choose the index of leases, which has a dead entry for every job since the oldest snapshot that is still open.
job.state || '' = 'InFlight' AND job.lease_expires_at > clock_timestamp();

-- name: begin
-- Records that leased jobs begin.
UPDATE conquiet_jobs AS job SET lease_begun = true
FROM unnest(%(begin_ids)s::text[], %(begin_tokens)s::text[]) AS begins (id, token)
WHERE job.id = begins.id AND job.lease_token = begins.token AND {current}
RETURNING job.lease_token;

-- name: ack_and_begin
-- `ack`, and `begin` for the jobs that take the places of those that have ended.
WITH done AS (
    {acked}
), counted AS (
    INSERT INTO conquiet_counts SELECT queue, 'Succeeded', count(*) FROM done GROUP BY queue
), begun AS (
    {begin}
)
SELECT place, NULL::text FROM done UNION ALL SELECT NULL, lease_token FROM begun;

-- name: settle
-- Ends leases in any way if the token is current and has not expired. Returns the queues of jobs that are Ready again
-- without delay: waiting workers have to be notified.
WITH ended AS (
UPDATE conquiet_jobs AS job SET
    state = done.state,
    retries = job.retries + done.retry,
    waiting = done.delay IS NOT NULL,
    retry_at = clock.now + done.delay * interval '1 second',
    finished_at = CASE WHEN done.state IN ('Succeeded', 'Failed') THEN clock.now END,
    error = CASE WHEN done.error IS NOT NULL OR done.outcome = 'failed' THEN done.error ELSE job.error END,
    attempts = CASE WHEN done.outcome = 'unbegun' THEN job.attempts
        ELSE job.attempts || jsonb_build_array(jsonb_build_array(job.lease_version, job.lease_worker,
            date_part('epoch', job.lease_started_at), date_part('epoch', clock.now),
            done.outcome, done.category, done.error_type, done.error, done.traceback)) END,
    lease_token = NULL,
    lease_expires_at = NULL
FROM unnest(%(ids)s::text[], %(tokens)s::text[], %(states)s::text[], %(outcomes)s::text[], %(retries)s::int[],
        %(delays)s::float8[], %(errors)s::text[], %(error_types)s::text[], %(categories)s::text[], %(tracebacks)s::text[])
        WITH ORDINALITY AS done (id, token, state, outcome, retry, delay, error, error_type, category, traceback, place),
    (SELECT clock_timestamp() AS now) AS clock
WHERE job.id = done.id AND job.lease_token = done.token AND {current}
RETURNING done.place, job.queue, job.state, done.state = 'Ready' AND done.delay IS NULL AS ready
), counted AS (
    INSERT INTO conquiet_counts SELECT queue, state, count(*) FROM ended WHERE state IN ('Succeeded', 'Failed')
    GROUP BY queue, state
)
SELECT place, CASE WHEN ready THEN queue END FROM ended;

-- name: set_aside
-- Fails a leased job whose row cannot be read. Its history is not changed.
WITH failed AS (
    UPDATE conquiet_jobs SET {failed} WHERE id = %(id)s AND lease_token = %(token)s AND state = 'InFlight' RETURNING queue
)
{count_failed};

-- name: set_aside_next
-- Like set_aside, for the job that would be claimed next and whose row makes the claim fail.
WITH failed AS (
    UPDATE conquiet_jobs SET {failed}
    WHERE id = (SELECT id FROM conquiet_jobs WHERE queue = ANY(%(queues)s::text[])
        AND (state = 'Ready' AND (NOT waiting OR retry_at <= clock_timestamp())
            OR state = 'InFlight' AND lease_expires_at <= clock_timestamp())
        ORDER BY priority, array_position(%(queues)s::text[], queue), seq LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED)
    RETURNING queue
)
{count_failed};

-- name: failed
state = 'Failed', error = %(reason)s, finished_at = clock_timestamp(), lease_token = NULL, lease_expires_at = NULL;

-- name: count_failed
INSERT INTO conquiet_counts SELECT queue, 'Failed', 1 FROM failed;

-- name: heartbeat
-- Extends current leases to now + their ttl, but never shortens one. It does not wait for locks, so it cannot take part in
-- a deadlock: a row that is being settled at this moment is not changed, and its lease counts as current.
WITH held (id, token) AS (SELECT * FROM unnest(%(ids)s::text[], %(tokens)s::text[])),
free AS (
    SELECT job.id FROM conquiet_jobs AS job JOIN held ON job.id = held.id AND job.lease_token = held.token
    WHERE {current} FOR NO KEY UPDATE OF job SKIP LOCKED
), extended AS (
    UPDATE conquiet_jobs AS job
    SET lease_expires_at = greatest(job.lease_expires_at, clock_timestamp() + job.lease_ttl * interval '1 second')
    FROM free WHERE job.id = free.id RETURNING job.lease_token, job.lease_expires_at
)
SELECT lease_token, date_part('epoch', lease_expires_at) FROM extended
UNION ALL
SELECT job.lease_token, date_part('epoch', job.lease_expires_at)
FROM conquiet_jobs AS job JOIN held ON job.id = held.id AND job.lease_token = held.token
WHERE {current};

-- name: get
SELECT {columns} FROM conquiet_jobs AS job WHERE id = %(id)s;

-- name: select
-- One page of jobs. Finished ones are read in the order of an index, for each name and state; the others are few. Only the
-- rows of the page are read completely. {order} is ascending or descending, {finished} and {live} are conditions. Limit and states are
-- written out: with parameters the plan for any value would read and sort everything.
WITH page AS (
    SELECT place FROM (
        SELECT job.* FROM {names} AS name CROSS JOIN (VALUES {states}) AS wanted (state) CROSS JOIN LATERAL (
            SELECT seq, ctid AS place FROM conquiet_jobs
            WHERE {finished} AND state = wanted.state AND state IN ('Succeeded', 'Failed')
            ORDER BY seq {order} LIMIT {limit}) AS job
        UNION ALL (SELECT seq, ctid FROM conquiet_jobs WHERE state = 'Ready' AND NOT waiting AND {live}
            ORDER BY seq {order} LIMIT {limit})
        UNION ALL (SELECT seq, ctid FROM conquiet_jobs WHERE state = 'Ready' AND waiting AND {live}
            ORDER BY seq {order} LIMIT {limit})
        UNION ALL (SELECT seq, ctid FROM conquiet_jobs WHERE state = 'InFlight' AND {live}
            ORDER BY seq {order} LIMIT {limit})
    ) AS found ORDER BY seq {order} LIMIT {limit}
)
SELECT job.seq, {columns} FROM conquiet_jobs AS job WHERE ctid = ANY(ARRAY(SELECT place FROM page)) ORDER BY seq {order};

-- name: finished_queues
-- The queues that have finished jobs: the first entry of each in the index.
WITH RECURSIVE found AS (
    (SELECT queue FROM conquiet_jobs WHERE state IN ('Succeeded', 'Failed') ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT job.queue FROM conquiet_jobs AS job
        WHERE job.state IN ('Succeeded', 'Failed') AND job.queue > found.queue ORDER BY job.queue LIMIT 1)
    FROM found WHERE found.queue IS NOT NULL
)
SELECT queue FROM found WHERE queue IS NOT NULL;

-- name: select_correlated
-- One page of the jobs with one correlation id, which are few.
SELECT job.seq, {columns} FROM conquiet_jobs AS job WHERE {live} ORDER BY seq {order} LIMIT {limit};

-- name: stats
-- Counts the jobs that are not finished; the finished ones have been counted. Queues whose jobs have all been
-- removed are left out.
SELECT queue, sum(ready)::bigint, sum(delayed)::bigint, sum(in_flight)::bigint, sum(expired)::bigint,
    sum(failed)::bigint, sum(succeeded)::bigint
FROM (
    SELECT queue, count(*) AS ready, 0 AS delayed, 0 AS in_flight, 0 AS expired, 0 AS failed, 0 AS succeeded
    FROM conquiet_jobs WHERE state = 'Ready' AND NOT waiting GROUP BY queue
    UNION ALL
    SELECT queue, count(*) FILTER (WHERE retry_at <= clock_timestamp()),
        count(*) FILTER (WHERE retry_at > clock_timestamp()), 0, 0, 0, 0
    FROM conquiet_jobs WHERE state = 'Ready' AND waiting GROUP BY queue
    UNION ALL
    SELECT queue, 0, 0, count(*) FILTER (WHERE lease_expires_at > clock_timestamp()),
        count(*) FILTER (WHERE lease_expires_at <= clock_timestamp()), 0, 0
    FROM conquiet_jobs WHERE state = 'InFlight' GROUP BY queue
    UNION ALL
    SELECT queue, 0, 0, 0, 0, coalesce(sum(jobs) FILTER (WHERE state = 'Failed'), 0),
        coalesce(sum(jobs) FILTER (WHERE state = 'Succeeded'), 0)
    FROM conquiet_counts GROUP BY queue
) AS counts
WHERE %(queue)s::text IS NULL OR queue = %(queue)s
GROUP BY queue HAVING sum(ready + delayed + in_flight + expired) > 0 OR sum(failed) > 0 OR sum(succeeded) > 0
ORDER BY queue;

-- name: backlog
-- Each part is read in the order of its index, so that it is used, and no further than to the limit.
SELECT count(*) FROM (
    (SELECT 1 FROM conquiet_jobs WHERE queue = %(queue)s AND state = 'Ready' AND NOT waiting
    ORDER BY priority, seq LIMIT %(limit)s)
    UNION ALL
    (SELECT 1 FROM conquiet_jobs
    WHERE queue = %(queue)s AND state = 'Ready' AND waiting AND retry_at <= (SELECT clock_timestamp())
    ORDER BY retry_at LIMIT %(limit)s)
    UNION ALL
    (SELECT 1 FROM conquiet_jobs
    WHERE queue = %(queue)s AND state = 'InFlight' AND lease_expires_at <= (SELECT clock_timestamp())
    ORDER BY lease_expires_at LIMIT %(limit)s)
    LIMIT %(limit)s
) AS due;

-- name: compact
-- Adds up counts. Rows that somebody else adds up at the moment are left to them.
WITH gone AS (
    DELETE FROM conquiet_counts
    WHERE ctid = ANY(ARRAY(SELECT ctid FROM conquiet_counts LIMIT 10000 FOR UPDATE SKIP LOCKED))
    RETURNING queue, state, jobs
)
INSERT INTO conquiet_counts SELECT queue, state, sum(jobs) FROM gone GROUP BY queue, state HAVING sum(jobs) <> 0;

-- name: retry
-- Makes a Failed job Ready, with all its retries.
WITH done AS (
    UPDATE conquiet_jobs SET state = 'Ready', retries = 0, waiting = false, retry_at = NULL, lease_expiries = 0,
        finished_at = NULL
    WHERE id = %(id)s AND state = 'Failed' RETURNING queue
), counted AS (
    INSERT INTO conquiet_counts SELECT queue, 'Failed', -1 FROM done
)
SELECT queue FROM done;

-- name: discard
-- What a DELETE removes is counted by a trigger.
DELETE FROM conquiet_jobs WHERE id = %(id)s AND state IN ('Ready', 'Failed');

-- name: prune
-- One step. Rows that somebody else prunes at the moment are left to them.
DELETE FROM conquiet_jobs
WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM conquiet_jobs WHERE state IN ('Succeeded', 'Failed')
        AND finished_at <= (SELECT clock_timestamp()) - %(older_than)s * interval '1 second'
    ORDER BY finished_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED));

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
