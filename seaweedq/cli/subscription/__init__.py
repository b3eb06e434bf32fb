"""The commands about subscriptions."""
