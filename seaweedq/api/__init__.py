"""HTTP: one file a resource, the hot routes, what brokers ask one another, errors as problems."""
