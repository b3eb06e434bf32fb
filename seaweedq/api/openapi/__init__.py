"""The OpenAPI document, made from the routes and their structs."""
