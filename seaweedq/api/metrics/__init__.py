"""Metrics for Prometheus: the families, and the sources of their values."""
