"""Metrics for Prometheus: what is shown, and where each value comes from."""
