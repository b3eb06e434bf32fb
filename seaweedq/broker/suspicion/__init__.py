"""Suspicion: which brokers seem dead to others, and whose lease is ended for it before its time."""
