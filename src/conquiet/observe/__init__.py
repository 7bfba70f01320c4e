"""Adapters to Prometheus and OpenTelemetry. Nothing here is needed for correctness."""
