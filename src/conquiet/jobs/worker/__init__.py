"""The job worker: claims, runs, keeps alive and settles jobs."""
