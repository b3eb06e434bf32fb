"""Subscriptions: who dispatches one, what it has delivered, its pulls and acks, and its cursors."""
