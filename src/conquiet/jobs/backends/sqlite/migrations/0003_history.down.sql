DROP INDEX conquiet_jobs_correlation;
DROP INDEX conquiet_jobs_task;
DROP INDEX conquiet_jobs_ended;
DROP INDEX conquiet_jobs_failed;
DROP INDEX conquiet_jobs_finished;
ALTER TABLE conquiet_jobs DROP COLUMN task;
