"""Coordination in one SQLite file."""
