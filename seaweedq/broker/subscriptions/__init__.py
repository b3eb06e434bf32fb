"""Subscriptions: assignment to a dispatcher, delivery, cursors."""
