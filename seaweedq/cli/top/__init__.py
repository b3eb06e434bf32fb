"""`seaweedq top`: the busiest topics and segments."""
