"""The client's core without I/O: effects, calls, batches, segment maps."""
