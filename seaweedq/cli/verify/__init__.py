"""`seaweedq verify`."""
