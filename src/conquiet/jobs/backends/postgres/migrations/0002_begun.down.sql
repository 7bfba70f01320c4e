DROP INDEX conquiet_jobs_due;
ALTER TABLE conquiet_jobs DROP COLUMN lease_begun;
