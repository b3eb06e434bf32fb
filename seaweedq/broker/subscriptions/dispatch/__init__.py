"""The dispatcher: pulls, acks, streams' turns, handoff, and the way of requests to it."""
