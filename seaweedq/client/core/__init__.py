"""The client's core, without I/O: calls, batches, segment maps, pulls, as generators that yield effects."""
