"""The rights of callers, their tokens and their limits. Pure: it reads no clock, store or network."""
