"""Decisions about load and placement: pure, the broker's leader applies them."""
