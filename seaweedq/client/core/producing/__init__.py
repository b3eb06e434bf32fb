"""Batches, their keys and streams, and their delivery."""
