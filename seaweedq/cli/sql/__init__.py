"""`seaweedq sql`: topics as views of DuckDB."""
