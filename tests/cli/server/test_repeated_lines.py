"""Lines that strangers cause are bounded."""

import inspect
import logging

import pytest
from uvicorn.protocols.http import httptools_impl

from seaweedq.api.connections.protocol import UNREADABLE
from seaweedq.cli.server.http_server import EACH_S, OnceInAWhile


def test_a_line_passes_once_in_a_while_and_says_how_many_did_not(caplog: pytest.LogCaptureFixture) -> None:
    now = [100.0]
    log = logging.getLogger("test.repeated")
    log.addFilter(OnceInAWhile(UNREADABLE, lambda: now[0]))
    for _ in range(1_000):
        log.warning(UNREADABLE)
    log.warning("another line")
    now[0] += EACH_S
    for _ in range(3):
        log.warning(UNREADABLE)
    now[0] += 5 * EACH_S
    log.warning(UNREADABLE)
    assert [record.getMessage() for record in caplog.records] == [
        UNREADABLE,
        "another line",
        f"{UNREADABLE} 999 more since the last such line.",
        f"{UNREADABLE} 2 more since the last such line.",
    ]


def test_it_is_the_line_that_uvicorn_writes() -> None:
    assert UNREADABLE in inspect.getsource(httptools_impl)
