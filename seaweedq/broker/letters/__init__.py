"""Dead letters: what a subscription gives up is published to its topic for dead letters, and then acked."""
