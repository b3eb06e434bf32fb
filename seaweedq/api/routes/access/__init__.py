"""Principals, their tokens, and the grants and limits of both."""
