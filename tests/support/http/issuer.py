"""An issuer of JSON Web Tokens, behind a port of its own: it publishes its keys, and misbehaves as a test says."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import time
from typing import Any, Literal

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

AUDIENCE = "seaweedq"
Mode = Literal["well", "hangs", "endless", "redirects", "fails", "lies", "nonsense", "plain"]


class Issuer:
    """The keys by name (`EC`, one of its own for each), those that are `published`, and the `requests` that came."""

    def __init__(self) -> None:
        self.mode: Mode = "well"
        self.keys: dict[str, Any] = {"k1": ec.generate_private_key(ec.SECP256R1())}
        self.published = ["k1"]
        self.requests: list[tuple[str, str | None]] = []
        self.ends = threading.Event()
        self.url = ""

    def add(self, name: str, key: Any = None, publish: bool = True) -> None:
        """Draw another key."""
        self.keys[name] = key or ec.generate_private_key(ec.SECP256R1())
        if publish:
            self.published.append(name)

    def set(self) -> dict[str, Any]:
        """The JWK set."""
        return {"keys": [jwk_of(self.keys[name], name) for name in self.published]}

    def token(self, kid: str = "k1", headers: dict[str, Any] | None = None, **claims: Any) -> str:
        """A token; a claim that is None is left out."""
        now_s = int(claims.pop("now_s", time()))
        usual = {"iss": self.url, "aud": AUDIENCE, "sub": "alice", "iat": now_s, "exp": now_s + 600}
        content = {name: value for name, value in (usual | claims).items() if value is not None}
        key = self.keys[kid]
        return jwt.encode(content, key, algorithm=algorithm_of(key), headers={"kid": kid, **(headers or {})})

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body."""
        if self.mode == "redirects":
            return 302, {"location": "http://localhost:1/elsewhere"}, b""
        if self.mode == "fails":
            return 500, {}, b"no"
        if self.mode == "nonsense":
            return 200, {}, b"[" * 10_000
        if path.endswith("openid-configuration"):
            keys = "http://example.com/keys" if self.mode == "plain" else f"{self.url}/keys"
            issuer = "https://evil.example" if self.mode == "lies" else self.url
            return 200, {}, json.dumps({"issuer": issuer, "jwks_uri": keys}).encode()
        return 200, {}, json.dumps(self.set()).encode()


def algorithm_of(key: Any) -> str:
    """The algorithm that a key's tokens have."""
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return "EdDSA"
    return "RS256" if isinstance(key, rsa.RSAPrivateKey) else f"ES{key.curve.key_size}"


def jwk_of(key: Any, name: str) -> dict[str, Any]:
    """The public JWK of a private key."""
    algorithm = algorithm_of(key)
    public = jwt.get_algorithm_by_name(algorithm).to_jwk(key.public_key(), as_dict=True)
    return {**public, "kid": name, "use": "sig", "alg": algorithm}


@contextmanager
def issuing() -> Iterator[Issuer]:
    """An issuer that answers at a free port of the loopback address."""
    issuer = Issuer()

    class Handler(BaseHTTPRequestHandler):
        """Answers as the issuer's mode is."""

        def do_GET(self) -> None:
            """As its base."""
            issuer.requests.append((self.path, self.headers.get("authorization")))
            if issuer.mode == "hangs":
                issuer.ends.wait(30)
                return
            if issuer.mode == "endless":
                self.send_response(200)
                self.end_headers()
                with_end = b" " * 2**16
                for _ in range(2**14):  # a GiB
                    try:
                        self.wfile.write(with_end)
                    except OSError:
                        return
                return
            status, headers, body = issuer.answer(self.path)
            kind = "jwk-set+json" if self.path.endswith("/keys") else "json"
            if f"application/{kind}" not in self.headers.get("accept", ""):
                status = 406  # as Kubernetes does
            self.send_response(status)
            for name, value in {**headers, "content-length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: Any) -> None:
            """Writes nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    issuer.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield issuer
    finally:
        issuer.ends.set()
        server.shutdown()
        server.server_close()
        thread.join()
