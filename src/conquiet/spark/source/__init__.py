"""The source: `spark.readStream.format("conquiet")` and `spark.read`, over Redis streams."""
