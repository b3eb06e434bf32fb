"""Connections of clients, in HTTP, TLS and WebSockets, and their bounds."""
