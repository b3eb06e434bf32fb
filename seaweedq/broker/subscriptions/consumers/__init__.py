"""Consumers: their leases and streams, the sharing of segments among them, the pulls that wait."""
