"""ASGI and HTTP below the routes: requests, parameters, problems, ranges."""
