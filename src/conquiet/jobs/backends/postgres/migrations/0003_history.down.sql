DROP TRIGGER conquiet_truncated ON conquiet_jobs;
DROP TRIGGER conquiet_deleted ON conquiet_jobs;
DROP FUNCTION conquiet_uncount;
DROP TABLE conquiet_counts;
DROP INDEX conquiet_jobs_correlation, conquiet_jobs_task, conquiet_jobs_ended, conquiet_jobs_finished;
ALTER TABLE conquiet_jobs DROP COLUMN task;
