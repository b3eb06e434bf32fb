"""Principals and tokens of the cluster: what each broker knows of them, and how they change."""
