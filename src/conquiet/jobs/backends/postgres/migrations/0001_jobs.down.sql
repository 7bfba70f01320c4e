DROP TABLE conquiet_jobs;
