"""Journals: where a broker makes everything durable before it is in a chain. The interface, files, objects, a twin."""
