"""A broker for all tests of a module."""

from tests.support.fixtures.module_broker import broker, http, topic  # noqa: F401
