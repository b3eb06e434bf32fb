"""Delivery of one segment: the state of each offset, what a pull gets, progress, filters. Pure."""
