"""Retention: which files are due, the raise of start offsets, and the deletion of files, by the leader."""
