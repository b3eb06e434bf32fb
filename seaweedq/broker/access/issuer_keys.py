"""The public keys of the issuer of JSON Web Tokens: fetched by discovery, cached, and fetched again.

| state | a known key | an unknown key |
| --- | --- | --- |
| none were fetched, or they are older than the bound | 503 | fetches, 503 |
| fetched, at most `max_age_s` ago | counts | fetches, then refused |

A fetch begins EVERY_S after the last one began, whether that succeeded or not, and so at most twice a minute; whatever
keys strangers name. Requests that need one wait for the one under way, TOTAL_S at most. Without any request they are
fetched each REFRESH_S, so that a key which the issuer has withdrawn counts no longer, and its tokens neither. An answer
replaces all keys. While the issuer is away, or answers nonsense, the keys of the last answer go on for `max_age_s`.

What the issuer sends is bounded in bytes, keys and time. No redirect is followed, and neither the issuer nor its keys
are at a plain http URL: who could change what comes from there could sign tokens. The file with the CA, and that with
the token of this broker, are read for each fetch: Kubernetes renews both.
"""

import asyncio
import hashlib
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from seaweedq.broker.access.jwt_rules import KEY_TYPES, may_be_asked
from seaweedq.clock import Clock
from seaweedq.settings import Settings

EVERY_S, REFRESH_S, TOTAL_S = 30.0, 300.0, 5.0
MAX_ANSWER_BYTES, MAX_KEYS = 256 * 1024, 100
MIN_RSA_BITS, MAX_RSA_BITS = 2048, 8192
CURVES = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}
OF_CURVES = {**{curve: algorithm for algorithm, curve in CURVES.items()}, "Ed25519": "EdDSA"}
DISCOVERY = "/.well-known/openid-configuration"
MEMBERS = {"RSA": ("e", "n"), "EC": ("crv", "x", "y"), "OKP": ("crv", "x")}  # of a key's thumbprint (RFC 7638)
_OBJECT = msgspec.json.Decoder(dict[str, Any])
Fetch = Callable[[], Awaitable[Sequence[Any]]]
logger = logging.getLogger(__name__)


class IssuerUnavailable(Exception):
    """The issuer does not answer, or answers nonsense."""


class IssuerKey(NamedTuple):
    """A public key. `algorithm` is the only one for which it may be used, None if it names none."""

    id: str | None
    type: str
    curve: str | None
    algorithm: str | None
    thumbprint: str
    public: Any

    def fits(self, algorithm: str) -> bool:
        """Returns whether the key may be used with an algorithm."""
        if self.algorithm not in (None, algorithm) or KEY_TYPES.get(algorithm) != self.type:
            return False
        return CURVES.get(algorithm, self.curve) == self.curve


def key_of(jwk: Any) -> IssuerKey | None:
    """Returns the key of a member of a JWK set; None for one that cannot be used: of another kind, for encryption, too
    weak, or private."""
    import jwt

    if not isinstance(jwk, dict) or jwk.get("use", "sig") != "sig" or "d" in jwk:
        return None
    kind, name, algorithm = jwk.get("kty"), jwk.get("kid"), jwk.get("alg")
    if kind not in ("RSA", "EC", "OKP") or not (name is None or isinstance(name, str)):
        return None
    if algorithm not in (None, *KEY_TYPES) or not all(isinstance(jwk.get(one), str) for one in MEMBERS[kind]):
        return None
    usual = "RS256" if kind == "RSA" else OF_CURVES.get(jwk["crv"])
    if usual is None or KEY_TYPES[usual] != kind:
        return None
    try:
        public = jwt.PyJWK(jwk, usual).key
    except (jwt.PyJWTError, ValueError, TypeError):
        return None
    if kind == "RSA" and not MIN_RSA_BITS <= public.key_size <= MAX_RSA_BITS:
        return None
    members = {"kty": kind, **{member: jwk[member] for member in MEMBERS[kind]}}
    thumbprint = hashlib.sha256(msgspec.json.encode(members)).hexdigest()
    return IssuerKey(name, kind, jwk.get("crv"), algorithm, thumbprint, public)


class IssuerKeys:
    """The keys of one broker. `changed` is called when some count no longer."""

    def __init__(self, fetch: Fetch, clock: Clock, max_age_s: float, changed: Callable[[], None]) -> None:
        self.fetches = {"ok": 0, "failed": 0}
        self._fetch = fetch
        self._clock = clock
        self._max_age_s = max_age_s
        self._changed = changed
        self._keys: Mapping[str, IssuerKey] = {}  # by thumbprint
        self._fetched_s: float | None = None
        self._began_s = float("-inf")
        self._running: asyncio.Task[None] | None = None
        self._is_away = self._lacks_keys = False

    @property
    def age_s(self) -> float | None:
        """The age of the keys, None if there are none."""
        return None if self._fetched_s is None else self._clock.monotonic_s() - self._fetched_s

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, thumbprint: str) -> bool:
        return thumbprint in self._keys

    def find(self, name: str | None, algorithm: str) -> IssuerKey | None:
        """Returns the key that a token names; of a token that names none, the only one for its algorithm."""
        fitting = [one for one in self._keys.values() if one.fits(algorithm) and name in (None, one.id)]
        return fitting[0] if fitting and (name is not None or len(fitting) == 1) else None

    async def fetched(self, name: str | None, algorithm: str) -> IssuerKey | None:
        """As `find`, behind a fetch if that one may begin, or is under way."""
        found = self.find(name, algorithm)
        if found is None and (self._begin() or self._running):
            await asyncio.shield(self._running)  # type: ignore[arg-type]
            found = self.find(name, algorithm)
        return found

    def tick(self) -> None:
        """Forgets keys that are too old, and begins a fetch if it is time for one."""
        age_s = self.age_s
        if age_s is not None and age_s > self._max_age_s:
            logger.error(
                "the keys of oidc_issuer are older than jwks_max_age_s=%g; the broker accepts no JSON Web Token until "
                "the issuer answers",
                self._max_age_s,
            )
            self._take({}, None)
        if age_s is None or age_s >= min(REFRESH_S, self._max_age_s / 2):
            self._begin()

    def close(self) -> None:
        """Ends the fetch that is under way."""
        if self._running:
            self._running.cancel()

    def _begin(self) -> bool:
        """Begins a fetch. Returns False if that is too early."""
        now_s = self._clock.monotonic_s()
        if self._running or now_s - self._began_s < EVERY_S:
            return False
        self._began_s = now_s
        self._running = asyncio.create_task(self._run(), name="fetch of the issuer's keys")
        return True

    async def _run(self) -> None:
        try:
            fetched = await self._fetch()
            found = {one.thumbprint: one for one in map(key_of, fetched[:MAX_KEYS]) if one}
        except Exception as error:  # a defect here must not end the requests that wait
            self.fetches["failed"] += 1
            if not self._is_away:
                defect = None if isinstance(error, IssuerUnavailable) else error
                logger.warning("the keys of oidc_issuer could not be fetched (%s); retrying", error, exc_info=defect)
            self._is_away = True
        else:
            self.fetches["ok"] += 1
            if self._is_away:
                logger.info("the broker has fetched the keys of oidc_issuer, after earlier attempts had failed")
            self._is_away = False
            self._warn(len(fetched), len(found))
            self._take(found, self._clock.monotonic_s())
        finally:
            self._running = None

    def _warn(self, fetched: int, usable: int) -> None:
        """Logs that tokens may be refused since their keys are left out, when that begins."""
        before, self._lacks_keys = self._lacks_keys, not usable or fetched > MAX_KEYS
        if self._lacks_keys and not before:
            logger.warning(
                "oidc_issuer publishes %d keys; the broker reads the first %d, and can use %d of these keys. It "
                "refuses tokens that other keys have signed",
                fetched,
                MAX_KEYS,
                usable,
            )

    def _take(self, keys: Mapping[str, IssuerKey], fetched_s: float | None) -> None:
        gone = self._keys.keys() - keys.keys()
        self._keys, self._fetched_s = keys, fetched_s
        if gone:
            self._changed()


class HttpIssuer:
    """Asks the issuer of the settings."""

    def __init__(self, settings: Settings) -> None:
        self._issuer = settings.oidc_issuer
        self._ca_file, self._token_file = settings.oidc_ca_file, settings.oidc_token_file

    async def fetch(self) -> Sequence[Any]:
        """Returns the members of the issuer's JWK set. Raises IssuerUnavailable."""
        import aiohttp

        try:
            tls, headers = await asyncio.to_thread(self._read_files)
            async with (
                asyncio.timeout(TOTAL_S),
                aiohttp.ClientSession(
                    connector=aiohttp.TCPConnector(ssl=tls, force_close=True),
                    cookie_jar=aiohttp.DummyCookieJar(),
                    auto_decompress=False,
                    headers=headers,
                ) as session,
            ):
                found = await _document(session, self._issuer.rstrip("/") + DISCOVERY)
                if found.get("issuer") != self._issuer:
                    named = str(found.get("issuer"))[:200]
                    raise IssuerUnavailable(f"{DISCOVERY} must name the issuer {self._issuer!r}, not {named!r}")
                url = found.get("jwks_uri")
                if not isinstance(url, str) or not may_be_asked(url):
                    raise IssuerUnavailable(f"the issuer's jwks_uri must be an https:// URL, not {str(url)[:200]!r}")
                keys = (await _document(session, url)).get("keys")
        except TimeoutError:
            raise IssuerUnavailable(f"no answer within {TOTAL_S:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise IssuerUnavailable(f"{type(error).__name__} {error}"[:500]) from error
        if not isinstance(keys, list):
            raise IssuerUnavailable("the issuer's jwks_uri returned no list of keys")
        return keys

    def _read_files(self) -> tuple[ssl.SSLContext, dict[str, str]]:
        tls = ssl.create_default_context(cafile=self._ca_file or None)
        # Kubernetes answers 406 where the type of its keys is not among those (RFC 7517, 8.5).
        headers = {"accept": "application/json, application/jwk-set+json", "accept-encoding": "identity"}
        if self._token_file:
            headers["authorization"] = f"Bearer {Path(self._token_file).read_text().strip()}"
        return tls, headers


async def _document(session: Any, url: str) -> dict[str, Any]:
    """Returns the JSON object at a URL. Raises IssuerUnavailable, and what aiohttp raises."""
    async with session.get(url, allow_redirects=False) as answer:
        if answer.status != 200:
            raise IssuerUnavailable(f"{url} answered {answer.status}")
        body = bytearray()
        async for part in answer.content.iter_chunked(64 * 1024):
            body += part
            if len(body) > MAX_ANSWER_BYTES:
                answer.close()
                raise IssuerUnavailable(f"the answer from {url} has more than {MAX_ANSWER_BYTES} bytes")
    try:
        return _OBJECT.decode(body)
    except (ValueError, RecursionError):
        raise IssuerUnavailable(f"the answer from {url} is not a JSON object") from None
