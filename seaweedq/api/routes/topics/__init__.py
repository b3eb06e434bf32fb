"""Topics: their configuration, their policies, their files."""
