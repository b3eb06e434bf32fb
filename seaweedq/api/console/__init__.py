"""The console: a page for browsers at `/`, its files below `/console`, and the start document for programs."""
