"""`seaweedq cluster`: the brokers and the cluster's level."""
