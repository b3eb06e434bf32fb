"""Addresses of clients: whose counts, and whose a trusted proxy's request is."""

import asyncio
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seaweedq.api.app import Application
from seaweedq.api.connections.connections import Addresses, ForwardedRequests
from seaweedq.api.request import Request
from seaweedq.errors import Overloaded
from seaweedq.settings import Settings
from tests.docs.test_docs_agree import unstarted
from tests.support.http.requests import no_body, of_scope
from tests.support.tiers import examples

TRUSTED = "10.0.0.0/8, 2001:db8:ffff::/48,192.0.2.7"


def asked(peer: str | None, forwarded: str | None = None) -> Request:
    headers = [] if forwarded is None else [(b"x-forwarded-for", forwarded.encode("latin-1"))]
    return of_scope({"client": (peer, 1) if peer else None, "headers": headers})


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("198.51.100.1", None, "198.51.100.1"),
        ("198.51.100.1", "203.0.113.9", "198.51.100.1"),  # it is not trusted
        ("10.1.1.1", "203.0.113.9", "203.0.113.9"),
        ("10.1.1.1", "6.6.6.6, 203.0.113.9, 192.0.2.7, 10.2.2.2", "203.0.113.9"),
        ("10.1.1.1", "6.6.6.6,203.0.113.9:4711", "203.0.113.9"),
        ("10.1.1.1", "[2001:db8::5]:4711", "2001:db8::5"),
        ("::ffff:10.1.1.1", "203.0.113.9", "203.0.113.9"),
        ("10.1.1.1", "unknown, _hidden", "10.1.1.1"),
        ("10.1.1.1", "6.6.6.6, unknown", "10.1.1.1"),
        ("10.1.1.1", "6.6.6.6, , 10.2.2.2", "10.1.1.1"),
        ("10.1.1.1", None, "10.1.1.1"),
        (None, "203.0.113.9", None),
    ],
)
def test_the_last_address_that_no_trusted_proxy_has_is_the_clients(
    peer: str | None, forwarded: str | None, client: str | None
) -> None:
    assert Addresses(TRUSTED).of(asked(peer, forwarded)) == client


def test_loopback_and_trusted_proxies_do_not_count_ipv6_by_its_network() -> None:
    addresses = Addresses(TRUSTED)
    for nobody in ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "10.3.4.5", "192.0.2.7", "", "/run/socket"):
        assert addresses.counted(nobody) == "", nobody
    assert addresses.counted("192.0.2.8") == addresses.counted("::ffff:192.0.2.8") == "192.0.2.8"
    assert addresses.counted("2001:db8::1") == addresses.counted("2001:db8::2:3") == "2001:db8::/64"
    assert addresses.counted("fe80::1%eth0") == "fe80::/64"
    assert Addresses().counted("10.3.4.5") == "10.3.4.5"


def test_requests_from_behind_a_trusted_proxy_count_by_their_address() -> None:
    refused: list[str] = []
    requests = ForwardedRequests(Addresses(TRUSTED), lambda reason, _: refused.append(reason))
    requests.most = 1
    one, other, direct = asked("10.1.1.1", "203.0.113.9"), asked("10.1.1.1", "203.0.113.8"), asked("198.51.100.1")
    with requests.answering(one):
        with requests.answering(other), requests.answering(direct), requests.answering(direct):
            pass
        with pytest.raises(Overloaded) as caught, requests.answering(one):
            raise AssertionError
        assert caught.value.fields["max_connections_per_address"] == 1
        assert refused == ["address"], "also where it is a WebSocket"
    with requests.answering(one):
        pass
    assert not requests._counts


@settings(max_examples=examples(100))
@given(st.text(st.characters(codec="latin-1", exclude_characters="\n\r"), max_size=60))
def test_nothing_in_the_header_is_an_error(text: str) -> None:
    found = Addresses(TRUSTED).of(asked("10.1.1.1", text))
    assert found == "10.1.1.1" or not Addresses(TRUSTED)._is_trusted(found)


def test_a_setting_that_is_no_network_is_refused() -> None:
    assert Settings(trusted_proxies="10.0.0.1/8, ::1").trusted_proxies
    for wrong in ("10.0.0", "10.0.0.0/33", "proxy.example.com"):
        with pytest.raises(ValueError, match="trusted_proxies"):
            Settings(trusted_proxies=wrong)


async def test_a_request_of_a_proxy_counts_until_its_answer_is_taken(tmp_path: Path) -> None:
    app = Application(unstarted(Settings(data_dir=tmp_path, trusted_proxies=TRUSTED)))
    app.forwarded.most = 1
    begun, taken = asyncio.Event(), asyncio.Event()

    async def ask(takes: asyncio.Event) -> int:
        """Returns the status of an answer that the client takes as an event is set."""
        statuses: list[int] = []

        async def out(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])
                begun.set()
            await takes.wait()

        await app({**asked("10.1.1.1", "203.0.113.9").scope, "path": "/nowhere", "raw_path": b"/nowhere"}, no_body, out)
        return statuses[0]

    at_once = asyncio.Event()
    at_once.set()
    slow = asyncio.create_task(ask(taken))
    await begun.wait()
    assert await ask(at_once) == 503
    taken.set()
    assert (await slow, await ask(at_once)) == (404, 404)
