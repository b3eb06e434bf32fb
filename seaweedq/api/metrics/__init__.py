"""Metrics for Prometheus: the metric families, and where their values come from."""
