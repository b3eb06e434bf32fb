"""Single requests: topics, segments, files."""
