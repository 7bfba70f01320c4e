"""The sinks: `writeStream.format("conquiet")` and `write`, to Redis streams and job stores."""
