"""`seaweedq serve`: one broker, or several with their parent."""
