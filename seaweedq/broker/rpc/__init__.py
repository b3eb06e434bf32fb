"""Calls between brokers: the client, bounded fields, and the frames of forwarded rows."""
