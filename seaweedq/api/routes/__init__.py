"""The routes, a room a resource."""
