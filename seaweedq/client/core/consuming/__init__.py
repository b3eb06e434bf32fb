"""Pulls, and the work on what they bring."""
