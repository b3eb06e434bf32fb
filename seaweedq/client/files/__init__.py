"""Files that the client reads and writes."""
