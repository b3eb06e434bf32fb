"""Payloads in the store: uploads, and both ways through a broker."""
