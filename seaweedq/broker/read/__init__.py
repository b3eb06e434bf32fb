"""Reads of a segment wherever it is, and the positions of a topic."""
