"""Connections, and the requests and answers on them, within bounds of number, size, time and memory."""
