"""Streams: messages that go to a client for as long as it listens."""
