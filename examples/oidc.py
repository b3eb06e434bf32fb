"""Tokens of an OpenID Connect issuer: a small issuer, a broker that accepts its tokens, and a publisher with a role.

    python examples/oidc.py

A real issuer, such as Keycloak, keeps its key to itself, and gives tokens to users who log in.
"""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec

from seaweedq import Client
from seaweedq.errors import Forbidden, SeaweedqError, Unauthenticated

KEY = ec.generate_private_key(ec.SECP256R1())
SEAWEEDQ = [sys.executable, "-m", "seaweedq"]


class Keys(BaseHTTPRequestHandler):
    """Publishes the issuer's key, by discovery."""

    def do_GET(self) -> None:
        public = jwt.get_algorithm_by_name("ES256").to_jwk(KEY.public_key(), as_dict=True)
        found = {"keys": [{**public, "kid": "1"}]} if self.path == "/keys" else {"issuer": ISSUER, "jwks_uri": KEYS}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(found).encode())

    def log_message(self, *arguments: Any) -> None:
        """Prints nothing."""


server = ThreadingHTTPServer(("127.0.0.1", 0), Keys)
ISSUER = f"http://127.0.0.1:{server.server_port}"
KEYS = f"{ISSUER}/keys"
threading.Thread(target=server.serve_forever, daemon=True).start()
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
roles = ["--oidc-roles", "importer=describe,create,publish:flights", "--oidc-algorithms", "ES256"]
options = ["--auth", "required", "--port", str(port), "--oidc-issuer", ISSUER, "--oidc-audience", "seaweedq", *roles]
with TemporaryDirectory() as folder:
    broker = subprocess.Popen([*SEAWEEDQ, "serve", "--data-dir", folder, *options], stdout=subprocess.DEVNULL)
    claims = {"iss": ISSUER, "aud": "seaweedq", "sub": "alice", "roles": ["importer"], "exp": time.time() + 600}
    with Client(f"http://127.0.0.1:{port}", token=jwt.encode(claims, KEY, "ES256", {"kid": "1"})) as alice:
        while broker.poll() is None:
            try:
                alice.topics()
                break
            except SeaweedqError:
                time.sleep(0.1)  # the broker is starting
        published = alice.publish("flights", {"value": {"carrier": "UA"}})
        print(f"alice published {published.count} message to flights")
        try:
            alice.publish("orders", {"value": 1})
        except Forbidden as error:
            print("alice may not publish to orders:", error.detail)
        deny = [*SEAWEEDQ, "denial", "create", "--sub", "alice", "--url", f"http://127.0.0.1:{port}"]
        subprocess.run(deny, env={**os.environ, "SEAWEEDQ_TOKEN_FILE": str(Path(folder, "admin-token"))}, check=True)
        try:
            alice.publish("flights", {"value": {"carrier": "AA"}})
        except Unauthenticated:
            print("alice's tokens are denied")
    broker.terminate()
    broker.wait()
