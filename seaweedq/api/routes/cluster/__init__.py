"""Health, the state of the cluster, and what an operator raises or confirms."""
