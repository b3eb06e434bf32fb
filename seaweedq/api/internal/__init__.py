"""Requests between brokers: what is answered to them, and what is passed on."""
