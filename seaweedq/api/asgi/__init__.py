"""HTTP on ASGI, below the other rooms: requests, answers, parameters, problems, ranges."""
