"""A publish: the batch is split, appended here, or forwarded to the owners."""
