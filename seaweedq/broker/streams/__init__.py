"""Reads of a whole topic, in the order of each key, of which nothing is kept."""
