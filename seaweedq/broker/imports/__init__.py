"""Imports of uploaded files: records, rules, the runner."""
