"""Connections without end: a bound, a reserve for probes and brokers, and the quiet ones make room. Addresses of
clients: which count, and which a trusted proxy's request has."""

import asyncio
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seaweedq.api.app import Application
from seaweedq.api.connections.connections import Addresses, Admission, Connections, ForwardedRequests
from seaweedq.api.request import Request
from seaweedq.cli.server.machine import connections_of, raise_limit
from seaweedq.errors import Overloaded
from seaweedq.settings import Settings
from tests.docs.test_docs_agree import unstarted
from tests.support import privates
from tests.support.http.requests import no_body, of_scope
from tests.support.http.serving_protocol import Limits, serving
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


@dataclass(eq=False)
class One:
    """A connection."""

    closed: list["One"] = field(default_factory=list)

    def make_room(self) -> None:
        self.closed.append(self)


def filled(most: int = 3, reserve: int = 2) -> tuple[Connections, list[One]]:
    connections, ones = Connections(most, reserve), [One() for _ in range(most)]
    for one in ones:
        assert connections.enter(one) is Admission.REGULAR
    return connections, ones


def test_the_one_that_is_quiet_for_longest_makes_room() -> None:
    connections, ones = filled()
    connections.touch(ones[0])
    connections.mark_busy(ones[1])
    for gone in (2, 0):
        assert connections.enter(One()) is Admission.REGULAR
        assert [bool(one.closed) for one in ones] == [gone == 0, False, True]
    assert len(connections) == 3


def test_where_all_are_busy_there_is_a_reserve_and_an_end() -> None:
    connections, ones = filled()
    for one in ones:
        connections.mark_busy(one)
    reserved = [One(), One()]
    assert [connections.enter(one) for one in reserved] == [Admission.RESERVE] * 2
    for path in (b"/healthz", b"/readyz", b"/internal/status"):
        assert connections.may_ask(reserved[0], path)
    assert not connections.may_ask(reserved[0], b"/v1/topics")
    for one in reserved:
        connections.mark_busy(one)
    assert connections.enter(One()) is Admission.NONE
    connections.mark_quiet(reserved[1])
    assert connections.enter(One()) is Admission.RESERVE
    assert reserved[1].closed
    connections.mark_quiet(ones[2])
    assert connections.may_ask(reserved[0], b"/v1/topics"), "there is a place now"
    assert ones[2].closed
    assert connections.may_ask(reserved[0], b"/v1/topics")


def test_requests_that_last_leave_a_quarter_of_the_places() -> None:
    connections, ones = filled(most=8)
    for one in ones:
        connections.mark_busy(one)
    assert [connections.stay(one) for one in ones] == [True] * 6 + [False] * 2
    connections.go(ones[0])
    connections.leave(ones[1])
    assert [connections.stay(one) for one in ones[6:]] == [True, True]
    assert not connections.stay(ones[0])
    assert Connections(1).stay(One())


@settings(max_examples=examples(200))
@given(st.lists(st.tuples(st.sampled_from(["enter", "busy", "quiet", "bytes", "ask", "leave"]), st.integers(0, 30))))
def test_any_order_keeps_the_bounds(steps: list[tuple[str, int]]) -> None:
    connections, ones = Connections(4, 2), []
    working: set[One] = set()
    for step, n in steps:
        here = [one for one in ones if not one.closed]
        if step == "enter":
            one = One()
            free = len(connections) < 6 or set(here) - working
            if (place := connections.enter(one)) is not Admission.NONE:
                ones.append(one)
            assert (place is Admission.NONE) == (not free) or (place is Admission.NONE and len(here) == 6)
        elif here:
            one = here[n % len(here)]
            if step == "busy":
                working.add(one)
                connections.mark_busy(one)
            elif step == "quiet":
                working.discard(one)
                connections.mark_quiet(one)
            elif step == "bytes":
                connections.touch(one)
            elif step == "ask":
                connections.may_ask(one, b"/v1")
                working.add(one)
                connections.mark_busy(one)
            else:
                connections.leave(one)
                one.closed.append(one)
        assert len(privates.regular(connections)) <= 4
        assert len(privates.reserved(connections)) <= 2
        assert set(privates.quiet(connections)) <= privates.regular(connections) | privates.reserved(connections)
        assert not any(one.closed for one in working & set(privates.quiet(connections)))
        assert not any(one.closed and one in privates.regular(connections) for one in ones)


@pytest.mark.parametrize(
    ("wanted", "files", "most", "reserve"),
    [
        (0, 1024, 665, 51),
        (0, 1 << 20, 16_384, 256),
        (0, 256, 16, 16),
        (100, 1024, 100, 51),
        (5000, 1024, 665, 51),
        (50_000, 1 << 20, 50_000, 256),
    ],
)
def test_how_many_there_may_be(wanted: int, files: int, most: int, reserve: int) -> None:
    assert connections_of(wanted, files) == (most, reserve)


def test_the_soft_limit_becomes_the_hard_one() -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
    try:
        assert raise_limit() >= 512
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# Over sockets.


async def answered(reader: asyncio.StreamReader) -> int:
    """The status of the next answer; 0 where the connection ended without one."""
    head = await asyncio.wait_for(reader.read(65_536), 30)
    return int(head.split()[1]) if head else 0


async def test_sockets_over_the_bound() -> None:
    release = asyncio.Event()

    async def app(scope: Any, receive: Any, out: Any) -> None:
        if scope["path"] == "/v1/wait":
            await release.wait()
        await out({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await out({"type": "http.response.body", "body": b""})

    limits = Limits(connections=Connections(2, 1))
    async with serving(app, limits) as port:
        opened = []

        async def ask(path: str | None) -> asyncio.StreamReader:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            opened.append(writer)
            if path:
                writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            return reader

        silent = await ask(None)
        assert await answered(await ask("/v1/a")) == 200
        waits = [await ask("/v1/wait")]
        assert await answered(silent) == 0, "the longest quiet one makes room"
        waits.append(await ask("/v1/wait"))
        await asyncio.sleep(0.05)
        assert await answered(await ask("/healthz")) == 200
        assert await answered(await ask("/internal/status")) == 200
        assert await answered(await ask("/v1/a")) == 503
        assert limits.refusals.counts["connection"] == 1
        release.set()
        assert [await answered(one) for one in waits] == [200, 200]
        assert await answered(await ask("/v1/a")) == 200
        for writer in opened:
            writer.close()


def test_an_address_has_its_own_bound_at_which_its_quiet_ones_make_room() -> None:
    connections = Connections(10, 2)
    connections.most_per_address = 2
    ones, other = [One(), One()], One()
    assert connections.enter(other, "192.0.2.9") is Admission.REGULAR
    for one in ones:
        assert connections.enter(one, "192.0.2.1") is Admission.REGULAR
    connections.mark_busy(ones[0])
    third = One()
    assert connections.enter(third, "192.0.2.1") is Admission.REGULAR
    assert [bool(one.closed) for one in (other, *ones)] == [False, False, True]
    connections.mark_busy(third)
    fourth = One()
    assert connections.enter(fourth, "192.0.2.1") is Admission.RESERVE, "a broker or a probe may come from there, too"
    assert connections.is_over(fourth)
    assert connections.may_ask(fourth, b"/healthz")
    assert not connections.may_ask(fourth, b"/v1/topics")
    connections.leave(third)
    assert connections.may_ask(fourth, b"/v1/topics")
    assert all(connections.enter(One()) is Admission.REGULAR for _ in range(5)), "addresses that do not count"
    for one in (other, *ones, fourth):
        connections.leave(one)
    assert not privates.by_address(connections)
    assert not privates.addresses(connections)


def test_a_connection_of_a_broker_counts_for_no_address() -> None:
    """It relays the pulls of thousands of clients, which wait, each on a connection of its own."""
    connections = Connections(20, 2)
    connections.most_per_address = 2
    for _ in range(10):
        one = One()
        assert connections.enter(one, "192.0.2.1") is Admission.REGULAR
        connections.mark_busy(one)
        connections.exempt(one)
    assert not privates.by_address(connections)
    client = One()
    assert connections.enter(client, "192.0.2.1") is Admission.REGULAR
    connections.leave(client)
    assert not privates.addresses(connections)


async def test_the_pieces_of_a_body_come_whole_and_in_order() -> None:
    letters = [b"%d," % number for number in range(2_000)]  # each a piece of its own, all of them in one read or few
    large = [bytes([number]) * 100_000 for number in range(5)]  # pieces that are taken as they come
    bodies: list[bytes] = []

    async def app(_scope: object, receive: Any, send: Any) -> None:
        pieces, more = [], True
        while more:
            message = await receive()
            more = message["more_body"]
            pieces.append(message["body"])
        assert all(type(piece) is bytes for piece in pieces), "others change, once more comes"
        bodies.append(b"".join(pieces))
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    async with serving(app, Limits()) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for chunks in (letters, large, [*large, *letters]):
            head = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
            writer.write(head + b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in chunks) + b"0\r\n\r\n")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 204")
            assert bodies.pop() == b"".join(chunks)
        writer.close()
