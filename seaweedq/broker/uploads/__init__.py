"""Uploads and payloads by reference: records, rules, checks, links."""
