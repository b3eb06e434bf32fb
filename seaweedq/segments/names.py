"""The pattern that names of topics, subscriptions and producers match: never hidden, never a path."""

NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,126}"
