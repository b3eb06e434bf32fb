"""Handlers of requests, a file a resource."""
