"""The rights of callers: actions, grants, tokens, and the one function that judges. Pure: it reads no clock, store
or network."""
