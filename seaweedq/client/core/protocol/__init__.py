"""The language of the core and its shells: effects, retries, errors, the choice of a broker, the forms of the wire."""
