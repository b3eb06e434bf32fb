"""Commands for principals and tokens."""
