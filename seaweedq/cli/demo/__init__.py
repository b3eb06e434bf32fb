"""`seaweedq demo` and `seaweedq bench`."""
