-- Finished jobs by queue, by task and by the time they ended; any job by its correlation id (docs/decisions/0010).
-- Jobs that are not finished are few, and found by the indexes of the claims.
ALTER TABLE conquiet_jobs ADD COLUMN task text COLLATE "C"
    GENERATED ALWAYS AS (CASE WHEN starts_with(payload, '{"task":"') THEN split_part(substr(payload, 10, 255), '"', 1) END) STORED;
CREATE INDEX conquiet_jobs_finished ON conquiet_jobs (queue, state, seq) WHERE state IN ('Succeeded', 'Failed');
CREATE INDEX conquiet_jobs_ended ON conquiet_jobs (finished_at) WHERE state IN ('Succeeded', 'Failed');
CREATE INDEX conquiet_jobs_task ON conquiet_jobs (task, state, seq)
    WHERE state IN ('Succeeded', 'Failed') AND task IS NOT NULL;
CREATE INDEX conquiet_jobs_correlation ON conquiet_jobs (correlation_id, seq) WHERE correlation_id IS NOT NULL;

-- How many jobs are finished: the sum of its rows. Each statement that finishes jobs adds a row, so none waits for another.
DROP TABLE IF EXISTS conquiet_counts;  -- of a conquiet_jobs that was dropped by hand
CREATE TABLE conquiet_counts (queue text COLLATE "C" NOT NULL, state text NOT NULL, jobs bigint NOT NULL)
    WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
INSERT INTO conquiet_counts
SELECT queue, state, count(*) FROM conquiet_jobs WHERE state IN ('Succeeded', 'Failed') GROUP BY queue, state;

-- Rows are deleted by people, too. The names are qualified, because their search_path may be another.
CREATE OR REPLACE FUNCTION conquiet_uncount() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'TRUNCATE' THEN
        EXECUTE format('DELETE FROM %I.conquiet_counts', TG_TABLE_SCHEMA);
    ELSE
        EXECUTE format('INSERT INTO %I.conquiet_counts SELECT queue, state, -count(*) FROM gone '
            'WHERE state IN (''Succeeded'', ''Failed'') GROUP BY queue, state', TG_TABLE_SCHEMA);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER conquiet_deleted AFTER DELETE ON conquiet_jobs REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION conquiet_uncount();
CREATE TRIGGER conquiet_truncated AFTER TRUNCATE ON conquiet_jobs
    FOR EACH STATEMENT EXECUTE FUNCTION conquiet_uncount();
