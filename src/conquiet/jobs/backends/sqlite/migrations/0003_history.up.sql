-- Jobs by queue, task, correlation id and the time they ended, for lists, statistics and pruning.
ALTER TABLE conquiet_jobs ADD COLUMN task TEXT GENERATED ALWAYS AS (
    CASE WHEN substr(payload, 1, 9) = '{"task":"' AND json_valid(payload) THEN json_extract(payload, '$.task') END) VIRTUAL;
CREATE INDEX conquiet_jobs_finished ON conquiet_jobs (queue, state) WHERE state IN ('Succeeded', 'Failed');
CREATE INDEX conquiet_jobs_failed ON conquiet_jobs (state) WHERE state = 'Failed';
CREATE INDEX conquiet_jobs_ended ON conquiet_jobs (finished_at) WHERE state IN ('Succeeded', 'Failed');
CREATE INDEX conquiet_jobs_task ON conquiet_jobs (task) WHERE task IS NOT NULL;
CREATE INDEX conquiet_jobs_correlation ON conquiet_jobs (correlation_id) WHERE correlation_id IS NOT NULL;
