"""`seaweedq doctor`: looks at a machine, its store and coordination, and at brokers that run."""
