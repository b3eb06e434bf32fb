"""`seaweedq topic` and its views."""
