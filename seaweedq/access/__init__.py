"""Who may do what: actions, grants, tokens, callers, and the one function that judges. Pure: it reads no clock, store
or network."""
