"""Decisions about load and placement: pure functions, whose results the leader carries out."""
