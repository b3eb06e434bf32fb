"""JSON Web Tokens, by a clock of the test's own: which count, why others do not, and when their keys are fetched."""

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from seaweedq.access.limits import Limits
from seaweedq.access.rights import NEVER_US, Action, Caller, Grant, Resource, judge
from seaweedq.broker.access import issuer_keys, jwts, principals
from seaweedq.broker.access.callers import AdminToken, Callers, Issuer
from seaweedq.broker.access.issuer_keys import EVERY_S, REFRESH_S, IssuerUnavailable, key_of
from seaweedq.broker.access.jwt_rules import MAX_BYTES, REFUSED, SKEW_S, rules_of
from seaweedq.broker.access.principals import DenialSpec, Principals, TokenSpec
from seaweedq.clock import SystemIds
from seaweedq.coordination import keys
from seaweedq.coordination.memory import MemoryCoordination
from seaweedq.errors import InvalidRequest, NotReady, Unauthenticated
from seaweedq.settings import Settings
from tests.broker.access.test_callers import ROOT, Time
from tests.support.brokers.sealers import admin_changes
from tests.support.http.issuer import AUDIENCE, jwk_of
from tests.support.http.issuer import Issuer as Keys

READ = Grant((Action.READ,), ("flights*",))
URL = "https://login.example.com"
SETTINGS = {"oidc_issuer": URL, "oidc_audience": AUDIENCE, "oidc_algorithms": "ES256,RS256,EdDSA"}
ROLES = "reader=describe,read:flights*; writer=publish:flights"
RSA = rsa.generate_private_key(65537, 2048)


class World:
    """One broker, its principals, and an issuer in memory."""

    def __init__(self, **settings: Any) -> None:
        self.time = Time()
        self.time.s = 1_800_000_000.0
        self.coordination = MemoryCoordination(self.time)
        self.keys = Keys()
        self.keys.url = URL
        self.fetches = 0
        self.away = False
        self.gate: asyncio.Event | None = None
        rules = rules_of(Settings.model_validate({**SETTINGS, "oidc_roles": ROLES, **settings}))
        assert rules
        issuer = Issuer(rules, self.fetch, 3600)
        self.callers = Callers(self.coordination, self.time, AdminToken(None), issuer)
        changes = admin_changes(self.coordination)
        self.principals = Principals(self.coordination, self.callers.view, self.time, SystemIds(), changes)

    async def fetch(self) -> Sequence[Any]:
        self.fetches += 1
        if self.gate:
            await self.gate.wait()
        if self.away:
            raise IssuerUnavailable("away")
        found: Sequence[Any] = self.keys.set()["keys"]
        return found

    def token(self, kid: str = "k1", headers: dict[str, Any] | None = None, **claims: Any) -> bytes:
        return self.keys.token(kid, headers, now_s=self.time.now_us() / 1e6, **claims).encode()

    async def caller(self, text: bytes) -> Caller:
        found = await self.callers.caller_of(text)
        assert found
        return found

    async def reason(self, text: bytes) -> str:
        """Why a text is refused; the client is told nothing of it."""
        with pytest.raises(Unauthenticated) as error:
            await self.callers.caller_of(text)
        assert (error.value.detail, error.value.fields) == (REFUSED, {})
        return error.value.reason.removeprefix("jwt-")


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    await made.callers.view.load()
    yield made
    await made.coordination.close()


def part(content: Any) -> bytes:
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=")


def claims_of(world: World) -> bytes:
    return world.token().split(b".")[1]


async def test_a_subject_without_a_principal_has_the_grants_of_its_roles(world: World) -> None:
    found = await world.caller(world.token(roles=["reader", "unheard-of"], jti="j1"))
    assert (found.principal, found.token, found.identity) == ("oidc:alice", "jwt:j1", "jwt")
    assert judge(found, Action.READ, Resource("flights2"))
    assert not judge(found, Action.PUBLISH, Resource("flights"))
    assert not judge(found, Action.ACCESS, Resource())
    assert found.is_subject
    assert not world.callers.view.principals
    none = await world.caller(world.token(roles=["unheard-of"]))
    assert not judge(none, Action.DESCRIBE, Resource("flights"))
    one = await world.caller(world.token(roles="writer"))
    assert judge(one, Action.PUBLISH, Resource("flights"))
    assert one.uid == found.uid != (await world.caller(world.token(sub="bob"))).uid


async def test_a_claim_that_names_a_principal_is_that_principal(world: World) -> None:
    text = world.token(roles=["reader"])
    assert (await world.caller(text)).is_subject
    await world.principals.put("alice", (Grant((Action.PUBLISH,), ("t",)),), Limits(requests=5), False)
    found = await world.caller(text)
    assert (found.principal, found.uid) == ("alice", world.callers.view.principals["alice"].uid)
    assert found.limits.requests == 5
    assert judge(found, Action.PUBLISH, Resource("t"))
    assert not judge(found, Action.READ, Resource("flights")), "roles are for those without a principal"
    await world.principals.put("alice", (READ,), Limits(), True)
    assert await world.reason(text) == "disabled"
    await world.principals.delete("alice")
    assert (await world.caller(text)).is_subject
    for name in ("admin", "*"):
        await world.principals.put("*", (), Limits(requests=7), False)
        strange = await world.caller(world.token(sub=name))
        assert (strange.principal, judge(strange, Action.ACCESS, Resource())) == (f"oidc:{name}", False)
        assert strange.limits.requests == 7


FORGED: dict[str, tuple[str, Any]] = {
    "an end before all times": ("no-expiry", lambda w: with_claims(w, exp=-1e308)),
    "a begin that no float holds": ("early", lambda w: with_claims(w, nbf=10**400)),
    "no algorithm": ("algorithm", lambda w: part({"alg": "none"}) + b"." + claims_of(w) + b"."),
    "no algorithm, in capitals": ("algorithm", lambda w: part({"alg": "NONE"}) + b"." + claims_of(w) + b".x"),
    "an algorithm that the settings leave out": ("algorithm", lambda w: with_header(w, alg="PS256")),
    "a list of algorithms": ("algorithm", lambda w: with_header(w, alg=["ES256"])),
    "the public key as a secret": ("algorithm", lambda w: signed_by_public_key(w)),
    "a key in the header": ("header", lambda w: w.token(headers={"jwk": jwk_of(w.keys.keys["k1"], "k1")})),
    "a link to keys": ("header", lambda w: w.token(headers={"jku": "https://evil.example/keys"})),
    "a link to a certificate": ("header", lambda w: w.token(headers={"x5u": "https://evil.example/x"})),
    "a certificate": ("header", lambda w: w.token(headers={"x5c": ["MII"]})),
    "an extension": ("header", lambda w: w.token(headers={"crit": ["b64"], "b64": True})),
    "a key's name that is no text": ("header", lambda w: with_header(w, kid=7)),
    "another issuer": ("issuer", lambda w: w.token(iss="https://evil.example")),
    "an issuer with a slash": ("issuer", lambda w: w.token(iss=URL + "/")),
    "a list of issuers": ("issuer", lambda w: with_claims(w, iss=[URL])),
    "another audience": ("audience", lambda w: w.token(aud="other")),
    "other audiences": ("audience", lambda w: w.token(aud=["other", "seaweedq2"])),
    "no audience": ("audience", lambda w: w.token(aud=None)),
    "no end": ("no-expiry", lambda w: w.token(exp=None)),
    "an end that is no number": ("no-expiry", lambda w: with_claims(w, exp="2100-01-01")),
    "an end that is true": ("no-expiry", lambda w: with_claims(w, exp=True)),
    "a second too late": ("expired", lambda w: w.token(exp=at(w, -SKEW_S - 1))),
    "a second too early": ("early", lambda w: w.token(nbf=at(w, SKEW_S + 1))),
    "issued in the future": ("early", lambda w: w.token(iat=at(w, SKEW_S + 1))),
    "no subject": ("subject", lambda w: w.token(sub=None)),
    "a subject that is no text": ("subject", lambda w: with_claims(w, sub=7)),
    "an empty subject": ("subject", lambda w: w.token(sub="")),
    "a long subject": ("subject", lambda w: w.token(sub="x" * 256)),
    "a subject of two lines": ("subject", lambda w: w.token(sub="alice\nadmin")),
    "an unknown key": ("key", lambda w: w.token(headers={"kid": "k9"})),
    "a byte over the bound": ("length", lambda w: b"ey.." + b"x" * (MAX_BYTES - 3)),
    "another signature": ("signature", lambda w: w.token().rpartition(b".")[0] + b"." + part(b"x" * 64)),
    "an empty signature": ("signature", lambda w: w.token().rpartition(b".")[0] + b"."),
    "claims of another token": ("signature", lambda w: swapped(w)),
    "five parts": ("form", lambda w: b"ey.e.e.e.e"),
    "a header that is no object": ("form", lambda w: part(b'["ES256"]').replace(b"W", b"ey", 1) + b".e.e"),
    "a deep header": ("form", lambda w: b"ey" + part(b"[" * 5000) + b".e.e"),
    "another alphabet": ("form", lambda w: w.token() + b"=="),
    "claims that are no object": ("form", lambda w: signed(w, b'"alice"')),
    "deep claims": ("form", lambda w: signed(w, b'{"a":' * 1000 + b"1" + b"}" * 1000)),
}


def at(world: World, after_s: float) -> float:
    return world.time.now_us() / 1e6 + after_s


def with_header(world: World, **more: Any) -> bytes:
    _, claims, signature = world.token().split(b".")
    return part({"alg": "ES256", "kid": "k1", **more}) + b"." + claims + b"." + signature


def signed(world: World, claims: bytes) -> bytes:
    return jwt.PyJWS().encode(claims, world.keys.keys["k1"], "ES256", {"kid": "k1"}).encode()


def with_claims(world: World, **more: Any) -> bytes:
    """A signed token with claims that the library would not write."""
    usual = {"iss": URL, "aud": AUDIENCE, "sub": "alice", "exp": at(world, 600)}
    return signed(world, json.dumps(usual | more).encode())


def signed_by_public_key(world: World) -> bytes:
    public = world.keys.keys["k1"].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    text = part({"alg": "HS256", "kid": "k1"}) + b"." + claims_of(world)
    return text + b"." + part(hmac.digest(public, text, hashlib.sha256))


def swapped(world: World) -> bytes:
    header, _, signature = world.token().split(b".")
    return b".".join((header, world.token(sub="bob").split(b".")[1], signature))


@pytest.mark.parametrize("name", FORGED)
async def test_what_is_not_a_good_token_is_refused_for_its_reason(world: World, name: str) -> None:
    reason, make = FORGED[name]
    assert await world.caller(world.token()), "the issuer's own is good"
    assert await world.reason(make(world)) == reason
    assert world.callers.jwts
    assert world.callers.jwts.refused[f"jwt-{reason}"] == 1


async def test_clocks_may_differ_by_a_minute_and_no_more(world: World) -> None:
    text = world.token(exp=at(world, 0), nbf=at(world, SKEW_S), iat=at(world, SKEW_S))
    assert await world.caller(text)
    world.time.s += SKEW_S - 1
    assert await world.caller(text)
    world.time.s += 1
    assert await world.reason(text) == "expired"
    endless = await world.caller(world.token(exp=1e300))
    assert endless.expires_us < NEVER_US


async def test_each_kind_of_key_counts_for_its_algorithm_alone(world: World) -> None:
    made = {"r": RSA, "d": ed25519.Ed25519PrivateKey.generate(), "p": ec.generate_private_key(ec.SECP384R1())}
    for name, key in made.items():
        world.keys.add(name, key)
    assert await world.caller(world.token("r"))
    assert await world.caller(world.token("d"))
    assert await world.reason(world.token("p")) == "algorithm"
    forged = jwt.PyJWS().encode(b"{}", made["p"], "ES384", {"kid": "p"}).split(".")
    forged[0] = part({"alg": "ES256", "kid": "p"}).decode()
    assert await world.reason(".".join(forged).encode()) == "key", "another curve"
    mixed = jwt.PyJWS().encode(b"{}", world.keys.keys["k1"], "ES256", {"kid": "r"})
    assert await world.reason(mixed.encode()) == "key", "a key of another kind"
    claims = base64.urlsafe_b64decode(claims_of(world) + b"==")
    assert await world.caller(jwt.PyJWS().encode(claims, made["d"], "EdDSA").encode()), "the only key for it"
    world.keys.add("k2")
    world.time.s += REFRESH_S
    assert await world.caller(world.token("k2"))
    nameless = jwt.PyJWS().encode(claims, world.keys.keys["k1"], "ES256")
    assert await world.reason(nameless.encode()) == "key", "one of two"


def test_keys_that_cannot_be_trusted_are_left_out() -> None:
    good = jwk_of(RSA, "r")
    assert key_of(good)
    short = rsa.generate_private_key(65537, 1024)
    bad: list[Any] = [
        *({**good, "use": "enc"}, {**good, "d": "AQAB"}, {**good, "n": 7}, {**good, "n": ""}, {**good, "kid": 7}),
        *({**good, "kty": "oct"}, {"kty": "oct", "k": "c2VjcmV0"}, {**good, "alg": "HS256"}, {**good, "alg": "none"}),
        *(None, [], "x", {}, {"kty": "EC", "crv": "secp256k1", "x": "AA", "y": "AA"}, {"kty": "OKP", "crv": "Ed448"}),
        *({**good, "kty": "EC"}, {**good, "e": "!"}, jwk_of(short, "s")),
    ]
    for one in bad:
        assert key_of(one) is None, one


async def test_a_claim_is_found_by_its_path(world: World) -> None:
    made = World(oidc_principal_claim="kubernetes.io/serviceaccount/name", oidc_roles_claim="realm_access/roles")
    await made.callers.view.load()
    await made.principals.put("importer", (READ,), Limits(), False)
    nested = {"kubernetes.io": {"serviceaccount": {"name": "importer"}}}
    assert (await made.caller(made.token(**nested))).principal == "importer"
    roles = await made.caller(made.token(realm_access={"roles": ["reader"]}))
    assert judge(roles, Action.READ, Resource("flights"))
    await made.coordination.close()


async def test_a_subject_may_be_a_role_and_has_no_two_by_a_blank() -> None:
    of = {"oidc_roles_claim": "sub", "oidc_roles": "system:serviceaccount:ns:importer=publish:t; b=read:t"}
    made = World(**of)
    await made.callers.view.load()
    found = await made.caller(made.token(sub="system:serviceaccount:ns:importer"))
    assert judge(found, Action.PUBLISH, Resource("t"))
    assert not judge(await made.caller(made.token(sub="a b")), Action.READ, Resource("t"))
    scoped = World(oidc_roles_claim="scope")
    await scoped.callers.view.load()
    both = await scoped.caller(scoped.token(scope="openid reader writer"))
    assert judge(both, Action.READ, Resource("flights"))
    assert judge(both, Action.PUBLISH, Resource("flights"))
    for one in (made, scoped):
        await one.coordination.close()


async def test_strangers_keys_are_fetched_at_most_twice_a_minute(world: World) -> None:
    good, strange = world.token(), [world.token(headers={"kid": f"x{number}"}) for number in range(5)]
    assert await world.caller(good)
    began_s, fetched = world.time.s, world.fetches
    while world.time.s < began_s + 300:
        world.callers.jwts.keys.tick()  # type: ignore[union-attr]
        assert await world.reason(strange[int(world.time.s) % 5]) == "key"
        assert await world.caller(good)
        world.time.s += 1
    assert world.fetches - fetched == 9
    world.keys.add("k2")
    world.time.s += EVERY_S
    assert await world.caller(world.token("k2")), "a new key is found behind the flood"


async def test_those_who_need_a_key_share_one_fetch(world: World) -> None:
    world.gate = asyncio.Event()
    asked = [asyncio.create_task(world.caller(world.token(sub=f"s{number}"))) for number in range(50)]
    await asyncio.sleep(0.01)
    assert world.fetches == 1
    world.gate.set()
    assert len({one.principal for one in await asyncio.gather(*asked)}) == 50


async def test_known_keys_go_on_while_the_issuer_is_away(world: World) -> None:
    text = world.token(exp=at(world, 10_000))
    assert await world.caller(text)
    world.away = True
    keys = world.callers.jwts.keys  # type: ignore[union-attr]
    for _ in range(118):
        world.time.s += 30
        keys.tick()
        await asyncio.sleep(0)
        assert await world.caller(world.token(exp=at(world, 600), jti=str(world.time.s)))
    assert keys.fetches["failed"] > 50
    world.time.s += 100
    keys.tick()
    await asyncio.sleep(0)
    with pytest.raises(NotReady, match="does not have the keys of oidc_issuer"):
        await world.callers.caller_of(text)
    world.away = False
    world.time.s += EVERY_S
    assert await world.caller(text)


async def test_a_withdrawn_key_ends_its_tokens_and_their_requests(world: World) -> None:
    text, ended = world.token(roles=["reader"]), []
    caller = await world.caller(text)
    world.keys.add("k2")
    world.keys.published.remove("k1")
    world.time.s += REFRESH_S
    with world.callers.holding(caller, Action.READ, Resource("flights"), lambda: ended.append("held")):
        world.callers.jwts.keys.tick()  # type: ignore[union-attr]
        await asyncio.sleep(0.01)
        assert ended == ["held"]
    assert world.callers.find(hashlib.sha256(text).digest()) is None
    assert await world.reason(text) == "key"
    world.keys.keys["k2"] = ec.generate_private_key(ec.SECP256R1())
    other = world.token("k2")
    world.time.s += EVERY_S
    assert await world.reason(other) == "signature", "another key of the same name is not asked for"


@pytest.mark.parametrize(("published", "told"), [([], "publishes 0 keys"), (["k2", "k1"], "publishes 2 keys")])
async def test_keys_that_the_issuer_lacks_or_has_too_many_of_are_told_once(
    world: World,
    published: list[str],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(issuer_keys, "MAX_KEYS", 1)
    world.keys.add("k2")
    world.keys.published = published
    for _ in range(3):
        assert await world.reason(world.token()) == "key"
        world.time.s += EVERY_S
    assert [told in one.getMessage() for one in caplog.records] == [True]
    world.keys.published = ["k1"]
    assert await world.caller(world.token())


@pytest.mark.parametrize(("kind", "value"), [("jti", "j1"), ("sub", "alice")])
async def test_a_denial_ends_tokens_and_their_requests_at_once(world: World, kind: Any, value: str) -> None:
    text, ended = world.token(roles=["reader"], jti="j1"), []
    other = world.token(roles=["reader"], jti="j2", sub="bob")
    caller = await world.caller(text)
    with world.callers.holding(caller, Action.READ, Resource("flights"), lambda: ended.append("held")):
        name, _ = await world.principals.deny(ROOT, DenialSpec(kind, value, 60_000_000))
        assert ended == ["held"]
    assert await world.reason(text) == "denied"
    assert await world.caller(other)
    with pytest.raises(Unauthenticated) as error:
        await world.callers.caller_of(text)
    assert error.value.token == "jwt:j1"
    world.time.s += 61 + (principals.LONGER_S if kind == "jti" else 0)
    assert await world.caller(text), "the denial has ended"
    await world.principals.deny(ROOT, DenialSpec(kind, value, None))
    world.time.s += 300
    assert await world.reason(text) == "denied"
    await world.principals.allow(name)
    assert await world.caller(text)


async def test_a_denied_token_has_no_other_text(world: World) -> None:
    text = world.token(jti=None)
    caller = await world.caller(text)
    assert caller.token
    assert caller.token.startswith("jwt:sha256:")
    await world.principals.deny(ROOT, DenialSpec("jti", caller.token.removeprefix("jwt:"), None))
    assert await world.reason(text) == "denied"
    raw = base64.urlsafe_b64decode(text.rpartition(b".")[2] + b"==")
    order = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
    turned = raw[:32] + (order - int.from_bytes(raw[32:], "big")).to_bytes(32, "big")
    other = text.rpartition(b".")[0] + b"." + part(turned)
    assert other != text
    assert await world.reason(other) == "denied", "ECDSA has two signatures for each"


async def test_a_token_denied_until_its_exp_never_counts_again(world: World) -> None:
    """Brokers take it for SKEW_S longer, and the clock of the caller who computed the time may be ahead by as much."""
    text = world.token(jti="j1", exp=at(world, 100))
    assert await world.caller(text)
    await world.principals.deny(ROOT, DenialSpec("jti", "j1", (100 - SKEW_S) * 1_000_000))
    for _ in range(100 + 2 * SKEW_S):
        world.time.s += 1
        assert await world.reason(text) in ("denied", "expired")


async def test_an_expired_token_is_refused_without_its_signature(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    text = world.token(exp=at(world, 0), jti="j1")
    other = world.token(exp=at(world, 600), jti="j2")
    for one in (text, other):
        assert await world.caller(one)
    remembered = world.callers.jwts
    assert remembered
    world.time.s += SKEW_S
    monkeypatch.setattr(jwt.PyJWS, "decode_complete", None)  # a look at a signature would fail
    for _ in range(3):
        assert await world.reason(text) == "expired"
        with pytest.raises(Unauthenticated) as error:
            await world.callers.caller_of(text)
        assert error.value.token == "jwt:j1"
    assert (await world.caller(other)).token == "jwt:j2"
    assert (remembered.verified, remembered.refused["jwt-expired"]) == (2, 6)


async def test_a_token_is_verified_once_and_the_memory_is_bounded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jwts, "REMEMBERED", 3)
    texts = [world.token(sub=f"s{number}") for number in range(5)]
    for _ in range(3):
        assert await world.caller(texts[0])
    remembered = world.callers.jwts
    assert remembered
    assert remembered.verified == 1
    for text in texts:
        await world.caller(text)
    known = [text for text in texts if remembered.find(hashlib.sha256(text).digest())]
    assert known == texts[2:]
    assert remembered.forget(None)
    assert not remembered.knows("sub:s4")


async def test_a_token_of_another_issuer_issues_and_sees_no_tokens(world: World) -> None:
    await world.principals.put("alice", (READ,), Limits(), False)
    caller = await world.caller(world.token(jti="0" * 16))
    with pytest.raises(InvalidRequest, match="must name the principal"):
        await world.principals.issue(caller, TokenSpec(None, None, None))
    assert not world.principals.may_see(caller, "0" * 16)
    assert world.principals.visible(caller, None) == []


async def test_without_an_issuer_such_a_text_is_none() -> None:
    time = Time()
    coordination = MemoryCoordination(time)
    callers = Callers(coordination, time, AdminToken(None))
    keys = Keys()
    assert await callers.caller_of(keys.token().encode()) is None
    assert await callers.caller_of(b"Basic dXNlcjpwYXNz") is None
    await coordination.close()


WRONG = [
    ({"oidc_audience": ""}, "oidc_audience", "needs oidc_audience"),
    ({"oidc_issuer": "http://login.example.com"}, "oidc_issuer", "or an http:// URL on loopback"),
    ({"oidc_algorithms": "HS256"}, "oidc_algorithms", "one or more of RS256"),
    ({"oidc_algorithms": "none"}, "oidc_algorithms", "one or more of RS256"),
    ({"oidc_algorithms": " , "}, "oidc_algorithms", "one or more of RS256"),
    ({"oidc_roles": "reader"}, "oidc_roles", "each role must have the form .*, not 'reader'"),
    ({"oidc_roles": "a=read:t;a=read:t"}, "oidc_roles", "appears twice"),
    ({"oidc_roles": "a=fly:t"}, "oidc_roles", "'fly' is not an action"),
    ({"oidc_roles": "a=read"}, "oidc_roles", "lists no topics"),
    ({"oidc_roles": "a=read:seaweedq.*"}, "oidc_roles", "matches no topic"),
    ({"oidc_roles": "a=read:t!"}, "oidc_roles", "not a valid pattern"),
]


@pytest.mark.parametrize(("given", "field", "told"), WRONG)
def test_settings_that_open_a_door_are_refused(given: dict[str, str], field: str, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told) as error:
        rules_of(Settings.model_validate({**SETTINGS, **given}))
    assert error.value.fields == {"field": field}


async def test_no_denial_made_anew_goes_by_a_view_that_is_behind(world: World) -> None:
    """Whoever denies sweeps what ended a day ago: as the store has it, and not only as this broker last saw it."""
    name, _ = await world.principals.deny(ROOT, DenialSpec("sub", "alice", 60_000_000))
    gone, _ = await world.principals.deny(ROOT, DenialSpec("sub", "carol", 60_000_000))
    seen = dict(world.callers.view.denials)
    world.time.s += 2 * 86_400
    await world.principals.deny(ROOT, DenialSpec("sub", "alice", None))
    world.callers.view.denials.update(seen)
    await world.principals.deny(ROOT, DenialSpec("sub", "bob", None))
    assert await world.coordination.get(keys.DENIALS.key(name)), "an acknowledged denial is gone"
    assert await world.coordination.get(keys.DENIALS.key(gone)) is None


async def test_denials_that_have_ended_need_no_place(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(principals, "MOST_DENIALS", 2)
    for subject in ("alice", "bob"):
        await world.principals.deny(ROOT, DenialSpec("sub", subject, 60_000_000))
    with pytest.raises(InvalidRequest, match="already has 2 denials"):
        await world.principals.deny(ROOT, DenialSpec("sub", "carol", None))
    world.time.s += 2 * 86_400
    await world.principals.deny(ROOT, DenialSpec("sub", "carol", None))
