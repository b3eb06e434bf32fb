"""A broker for all tests of a module, which has to be well after each of them."""

from tests.support.fixtures.module_broker import broker, http, octets, topic, well  # noqa: F401
