"""Subscriptions: their settings, pulls, acks, seeks."""
