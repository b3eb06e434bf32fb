"""The base of all groups of settings."""

from pydantic import BaseModel


class Group(BaseModel, defer_build=True):
    """The settings of one subject. None is ever made by itself, so that none is built."""
