"""The parts of HTTP requests that both shells share."""
