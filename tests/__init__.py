"""Tests, in a tree that mirrors seaweedq/; what they share is in tests/support."""
