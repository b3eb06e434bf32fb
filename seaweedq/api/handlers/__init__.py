"""Request handlers, one file per resource."""
