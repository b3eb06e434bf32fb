"""TLS for clients: JSON batches on kept connections, in turns with a broker without it."""

import itertools
import ssl
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from benchmarks import server
from benchmarks.http import Connections, ask_all, request, run
from benchmarks.result import Result

TURNS, BATCHES, ROWS, CONNECTIONS = 10, 200, 1_000, 16


def measure(folder: Path) -> Iterator[Result]:
    """Both brokers stay for all turns."""
    options = _pair(folder / "tls")
    with server.broker(folder / "plain") as plain, server.broker(folder / "secured", *options) as secured:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        ways: list[tuple[server.Server, ssl.SSLContext | None]] = [(secured, context), (plain, None)]
        for one, tls in ways:
            run(one.port, 1, lambda opened: opened[0].ask_json("PUT", "/v1/topics/bench", {}), tls)
        found: dict[int, list[tuple[float, float]]] = {secured.port: [], plain.port: []}
        for turn in range(TURNS):
            for one, tls in ways if turn % 2 else reversed(ways):
                found[one.port].append(_per_s(one, tls))
    rates, cpu = zip(*found[secured.port], strict=True)
    plain_rates, plain_cpu = zip(*found[plain.port], strict=True)
    yield Result(
        name="access, TLS, batches",
        figure=max(rates),
        unit="requests/s",
        limit=max(plain_rates),
        limit_is="the same without TLS, in turns",
        target=0.8,
        target_of="ratio",
        note=f"{ROWS:,} JSON messages each on {CONNECTIONS} kept connections, best of {TURNS} turns; the broker's CPU "
        f"of one: {min(cpu):.2f} ms, and {min(plain_cpu):.2f} without",
    )


def _per_s(broker: server.Server, tls: ssl.SSLContext | None) -> tuple[float, float]:
    """Batches a second, and the broker's CPU of one in milliseconds."""
    prepared = [request("/v1/topics/bench/messages", _batch(n), "application/json") for n in range(BATCHES)]

    async def work(opened: Connections) -> tuple[float, float]:
        await ask_all(opened, itertools.islice(prepared, CONNECTIONS))
        cpu_s, begun = broker.cpu_s(), time.perf_counter()
        await ask_all(opened, prepared)
        took_s = time.perf_counter() - begun
        return BATCHES / took_s, (broker.cpu_s() - cpu_s) / BATCHES * 1e3

    found: tuple[float, float] = run(broker.port, CONNECTIONS, work, tls)
    return found


def _batch(number: int) -> bytes:
    ones = (b'{"key":"key-%08d","value":{"n":%d}}' % (n, n) for n in range(number * ROWS, (number + 1) * ROWS))
    return b'{"messages":[' + b",".join(ones) + b"]}"


def _pair(folder: Path) -> list[str]:
    """The options of a broker with a certificate of its own."""
    folder.mkdir(parents=True)
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    certificate = (
        builder.not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    (folder / "cert.pem").write_bytes(certificate.public_bytes(pem))
    (folder / "key.pem").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    return ["--tls-cert-file", str(folder / "cert.pem"), "--tls-key-file", str(folder / "key.pem")]
