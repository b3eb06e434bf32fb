"""`seaweedq help`: pages to read in the terminal."""
