"""The real job stores, queues and consumers, with a recorder between them and their server.

`recording.jobs` and `recording.streams` write everything that happens into a `conquiet.verify.history.History`, and name
the points of a job's or message's life at which a test may let a process die.
"""
