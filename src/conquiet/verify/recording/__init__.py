"""Real job stores, queues and consumers, with a recorder between them and their server.

`recording.jobs` and `recording.streams` write everything that happens into a `conquiet.verify.history.History`, and name
the points in the life of a job or message at which a test may kill a process.
"""
