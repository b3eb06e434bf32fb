"""Uploads, imports, and the reading of payloads."""
