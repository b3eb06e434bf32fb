"""Sizes in bytes."""

KIB, MIB = 1024, 1024 * 1024
