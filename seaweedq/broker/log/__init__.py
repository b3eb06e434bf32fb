"""An open segment: its tail, the group commit, the flusher, the reader, and the memory that they share."""
