"""The cluster: its leader, suspicion and heartbeats, the level that all brokers read, and how a broker joins."""
