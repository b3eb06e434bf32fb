"""Measured load of segments and brokers."""
