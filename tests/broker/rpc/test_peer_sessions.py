"""Sessions between brokers: what was stamped is taken once, and nothing else is ever taken."""

from base64 import urlsafe_b64encode
from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seaweedq.broker.rpc import peer_sessions
from seaweedq.broker.rpc.peer_sessions import (
    SESSION_S,
    WINDOW,
    Covered,
    Hello,
    Incoming,
    IncomingSessions,
    Outgoing,
    Welcome,
    accepted,
)
from seaweedq.clock import SystemIds
from seaweedq.errors import PeerRefused
from tests.support.brokers.peer_keys import keys_of

CALLER, CALLEE = "caller.01", "callee.02"
REQUEST = Covered(b"POST", b"/internal/publish", b"", (b"seaweedq-caller:x",))
TEXTS = st.binary(max_size=12).filter(lambda text: b"\n" not in text)
NONCE = "0" * 32


class StandingClock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.at_s = 0.0

    def now_us(self) -> int:
        raise AssertionError("no wall clock has a part in this")

    def monotonic_s(self) -> float:
        return self.at_s


class Pair:
    """A caller and a callee."""

    def __init__(self, caller: str = "sesame", *callee: str) -> None:
        self.clock = StandingClock()
        self.callers = keys_of(caller).roots[0]
        self.callee = IncomingSessions(keys_of(*callee or ["sesame"]), CALLEE, self.clock, SystemIds())

    def hello(self, nonce: str | None = None, caller: str = CALLER) -> Hello:
        """A hello of the caller."""
        return Hello(caller, CALLEE, nonce or SystemIds().nonce()).signed(self.callers)

    def begin(self, caller: str = CALLER) -> Outgoing:
        """A session of the caller."""
        hello = self.hello(caller=caller)
        return accepted(hello, self.callee.welcome(hello), self.callers, self.clock.at_s)


def reason(call: Callable[[], object]) -> str:
    """Why a call is refused."""
    with pytest.raises(PeerRefused) as raised:
        call()
    return str(raised.value.fields["reason"])


def test_a_request_is_taken_once_and_names_its_sender() -> None:
    pair = Pair()
    session = pair.begin()
    stamps = [session.stamp(REQUEST) for _ in range(3)]
    assert [pair.callee.check(stamp, REQUEST) for stamp in stamps] == [CALLER] * 3
    assert {reason(lambda stamp=stamp: pair.callee.check(stamp, REQUEST)) for stamp in stamps} == {"taken"}


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_in_any_order_each_is_taken_once_up_to_the_window(data: st.DataObject) -> None:
    """A model of all that was taken agrees with the window, number by number."""
    incoming = Incoming(CALLER, NONCE, Welcome(CALLEE, NONCE, NONCE), b"", 0.0)
    taken: set[int] = set()
    step = st.one_of(st.integers(1, 40), st.integers(1, 3 * WINDOW), st.just(10**17))
    for number in data.draw(st.lists(step, max_size=60)):
        highest = max(taken, default=0)
        if number in taken and number > highest - WINDOW:
            assert reason(lambda number=number: incoming.accept(number)) == "taken"
        elif number <= highest - WINDOW:
            assert reason(lambda number=number: incoming.accept(number)) == "late"
        else:
            incoming.accept(number)
            taken.add(number)
        assert incoming.seen < 1 << WINDOW


def test_the_edges_of_the_window() -> None:
    incoming = Incoming(CALLER, NONCE, Welcome(CALLEE, NONCE, NONCE), b"", 0.0)
    incoming.accept(2 * WINDOW)
    incoming.accept(WINDOW + 1)
    assert reason(lambda: incoming.accept(WINDOW)) == "late"
    assert reason(lambda: incoming.accept(WINDOW + 1)) == "taken"
    incoming.accept(2 * WINDOW + 1)
    assert reason(lambda: incoming.accept(WINDOW + 1)) == "late"
    assert reason(lambda: incoming.accept(2 * WINDOW)) == "taken"


@settings(max_examples=60, deadline=None)
@given(st.builds(Covered, TEXTS, TEXTS, TEXTS, st.lists(TEXTS, max_size=3).map(tuple)))
def test_a_stamp_holds_for_no_other_request(other: Covered) -> None:
    pair = Pair()
    stamp = pair.begin().stamp(REQUEST)
    if other != REQUEST:
        assert reason(lambda: pair.callee.check(stamp, other)) == "mac"
    assert pair.callee.check(stamp, REQUEST) == CALLER


@pytest.mark.parametrize(
    "change",
    [
        {"method": b"GET"},
        {"path": b"/internal/close"},
        {"path": b"/internal/publish\n"},
        {"query": b"x"},
        {"query": b"\n"},
        {"headers": ()},
        {"headers": (b"seaweedq-caller:y",)},
        {"headers": (b"seaweedq-caller:x", b"seaweedq-caller:x")},
        {"path": b"/internal/publish\n", "query": b"seaweedq-caller:x", "headers": ()},
    ],
)
def test_a_change_of_any_part_is_seen(change: dict[str, object]) -> None:
    pair = Pair()
    stamp = pair.begin().stamp(REQUEST)
    assert reason(lambda: pair.callee.check(stamp, replace(REQUEST, **change))) in ("mac", "form")


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 200), st.integers(1, 255))
def test_a_stamp_that_is_changed_anywhere_is_refused(at: int, by: int) -> None:
    pair = Pair()
    stamp = pair.begin().stamp(REQUEST)
    raw = bytearray(stamp.encode())
    at %= len(raw)
    raw[at] ^= by
    changed = raw.decode("latin-1")
    if changed.lower() != stamp:  # hexadecimal digits mean the same in both cases
        assert reason(lambda: pair.callee.check(changed, REQUEST)) in ("form", "session", "mac")


@pytest.mark.parametrize(
    "stamp",
    [
        *("", " ", "  ", "x", "é é é", "1 " * 1000, f"{NONCE} ", f"{NONCE} 1", f"{NONCE}  1"),
        *(f"{NONCE} {number} {'0' * 64}" for number in ("-1", "١", "1_0", "", "+1", "9" * 19, "9" * 5000)),
        *(f"{NONCE} 1 {mac}" for mac in ("0" * 63, "0" * 65, "g" * 64, " " * 64)),
    ],
)
def test_what_is_no_stamp_is_refused(stamp: str) -> None:
    assert reason(lambda: Pair().callee.check(stamp, REQUEST)) in ("form", "session")


@pytest.mark.parametrize(
    "text",
    ["", "é", "!", "AAAA", "x" * 10_000, urlsafe_b64encode(msgspec.msgpack.encode(["a", "b", "c", b"d"])).decode()],
)
def test_what_is_no_hello_is_refused(text: str) -> None:
    assert reason(lambda: Hello.decode(text)) == "form"


@pytest.mark.parametrize(
    "change", [{"caller": "x"}, {"callee": "x"}, {"nonce": "1" * 32}, {"mac": b""}, {"mac": b"x" * 32}]
)
def test_a_hello_that_is_changed_is_refused(change: dict[str, object]) -> None:
    pair = Pair()
    hello = pair.hello()
    assert reason(lambda: pair.callee.welcome(msgspec.structs.replace(hello, **change))) == "secret"
    assert Hello.decode(hello.encode()) == hello


@pytest.mark.parametrize(
    "change", [{"callee": "x"}, {"nonce": "1" * 32}, {"session": NONCE}, {"mac": b""}, {"mac": b"x" * 32}]
)
def test_a_welcome_that_is_changed_is_refused(change: dict[str, object]) -> None:
    pair = Pair()
    hello = pair.hello()
    changed = msgspec.structs.replace(pair.callee.welcome(hello), **change)
    assert reason(lambda: accepted(hello, changed, pair.callers, 0.0)) == "secret"


def test_a_hello_for_another_broker_is_refused_by_this_one() -> None:
    pair = Pair()
    hello = Hello(CALLER, "callee.01", NONCE).signed(pair.callers)
    assert reason(lambda: pair.callee.welcome(hello)) == "broker"


def test_a_broker_with_an_odd_id_is_greeted_as_any() -> None:
    for odd in ("", "é\ud800", "a b\n", "x" * 3000):
        clock, keys = StandingClock(), keys_of("sesame")
        callee = IncomingSessions(keys, odd, clock, SystemIds())
        hello = Hello(odd, odd, SystemIds().nonce()).signed(keys.roots[0])
        session = accepted(hello, callee.welcome(hello), keys.roots[0], 0.0)
        assert callee.check(session.stamp(REQUEST), REQUEST) == odd


def test_another_secret_is_refused_and_a_further_one_accepted() -> None:
    pair = Pair("other")
    assert reason(lambda: pair.callee.welcome(pair.hello())) == "secret"
    pair = Pair("old", "new", "old")
    assert pair.callee.check(pair.begin().stamp(REQUEST), REQUEST) == CALLER


def test_a_session_of_one_secret_is_none_of_another() -> None:
    pair = Pair("old", "new", "old")
    hello = pair.hello()
    welcome = pair.callee.welcome(hello)
    assert reason(lambda: accepted(hello, welcome, keys_of("new").roots[0], 0.0)) == "secret"


def test_a_repeated_hello_gets_the_same_answer_and_makes_nothing() -> None:
    pair = Pair()
    hello = pair.hello()
    first = pair.callee.welcome(hello)
    session = accepted(hello, first, pair.callers, 0.0)
    pair.callee.check(session.stamp(REQUEST), REQUEST)
    assert [pair.callee.welcome(hello) for _ in range(5)] == [first] * 5
    assert len(pair.callee) == 1
    assert pair.callee.check(session.stamp(REQUEST), REQUEST) == CALLER


def test_a_session_ends_after_an_hour_and_its_caller_knows_it_earlier() -> None:
    pair = Pair()
    pair.clock.at_s = 10.0
    session = pair.begin()
    assert session.until_s < 10.0 + SESSION_S
    pair.clock.at_s = 9.0 + SESSION_S
    assert pair.callee.check(session.stamp(REQUEST), REQUEST) == CALLER
    pair.clock.at_s = 10.0 + SESSION_S
    assert reason(lambda: pair.callee.check(session.stamp(REQUEST), REQUEST)) == "session"
    pair.begin()
    assert len(pair.callee) == 1


def test_another_life_of_the_callee_takes_nothing_of_what_was_recorded() -> None:
    pair = Pair()
    hello = pair.hello()
    session = accepted(hello, pair.callee.welcome(hello), pair.callers, 0.0)
    recorded = [session.stamp(REQUEST) for _ in range(20)]
    reborn = IncomingSessions(keys_of("sesame"), CALLEE, pair.clock, SystemIds())
    reborn.welcome(hello)
    assert {reason(lambda stamp=stamp: reborn.check(stamp, REQUEST)) for stamp in recorded} == {"session"}


def test_hellos_without_end_leave_few_sessions_and_none_in_use_ends() -> None:
    pair = Pair()
    used = pair.begin()
    pair.callee.check(used.stamp(REQUEST), REQUEST)
    for _ in range(200):
        pair.callee.welcome(pair.hello())
    assert len(pair.callee) == peer_sessions.MOST_OF_ONE
    assert pair.callee.check(used.stamp(REQUEST), REQUEST) == CALLER


def test_all_callers_together_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_sessions, "MOST", 10)
    pair = Pair()
    used = [pair.begin(f"caller.{number}") for number in range(5)]
    for session in used:
        pair.callee.check(session.stamp(REQUEST), REQUEST)
    for number in range(50):
        pair.callee.welcome(pair.hello(caller=f"other.{number}"))
    assert len(pair.callee) == 10
    assert [pair.callee.check(session.stamp(REQUEST), REQUEST) for session in used] == [
        f"caller.{number}" for number in range(5)
    ]


def test_among_sessions_in_use_the_longest_unused_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_sessions, "MOST", 3)
    pair = Pair()
    first, second, third = (pair.begin(f"caller.{number}") for number in range(3))
    for session in (first, second, third, first):
        pair.callee.check(session.stamp(REQUEST), REQUEST)
    pair.begin("caller.9")
    assert reason(lambda: pair.callee.check(second.stamp(REQUEST), REQUEST)) == "session"
    assert pair.callee.check(first.stamp(REQUEST), REQUEST) == "caller.0"


def test_only_seaweedqs_headers_are_covered_in_any_order_not_the_stamp() -> None:
    pairs = [(b"seaweedq-b", b"2"), (b"host", b"x"), (b"seaweedq-peer", b"s"), (b"seaweedq-a", b"1")]
    found = Covered.from_request("GET", b"/v1", b"", pairs)
    assert found.headers == (b"seaweedq-a:1", b"seaweedq-b:2")
    assert Covered.from_request("GET", b"/v1", b"", reversed(pairs)) == found
