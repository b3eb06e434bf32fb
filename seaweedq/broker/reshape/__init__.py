"""Splits, merges and rolls: planned, carried out, counted."""
