"""`seaweedq dead-letters`."""
