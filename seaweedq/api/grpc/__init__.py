"""The gRPC door: the methods of proto/seaweedq/v1/queue.proto, each of which is a request to an HTTP route's handler
inside this process (decision 0014)."""
