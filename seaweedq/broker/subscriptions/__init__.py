"""Subscriptions: who dispatches, deliveries, cursors."""
