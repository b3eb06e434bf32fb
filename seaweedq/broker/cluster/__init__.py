"""The cluster: who leads, what the leader does, which brokers seem dead, and the level that all read."""
