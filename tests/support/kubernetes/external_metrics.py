"""A stand-in for an adapter of external metrics: `external.metrics.k8s.io` for one metric of the brokers of a release.

It scrapes the brokers by HTTP each SCRAPE_S, as Prometheus does, and serves the largest value. The API server reaches
it by an APIService, whose service is of the type ExternalName, at its port of loopback: there is no network of a
cluster. It needs no right: it is for tests alone. `asked` has the paths that the API server asked for, with how often.
"""

import json
import ssl
import threading
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx

from tests.support.http.certificates import Authority
from tests.support.kubernetes.api import Kubernetes

GROUP, VERSION = "external.metrics.k8s.io", "v1beta1"
ROOT = f"/apis/{GROUP}/{VERSION}"
NAMESPACE, SERVICE = "monitoring", "external-metrics"
SCRAPE_S = 2.0
READY_S = 60.0


class ExternalMetrics:
    """Serves `metric` as its brokers say, whose URLs `brokers` returns. `value` is the largest one, None without any:
    then the metric is missing."""

    def __init__(self, metric: str, brokers: Callable[[], Iterable[str]]) -> None:
        self.asked: Counter[str] = Counter()
        self.value: int | None = None
        self._metric, self._brokers = metric, brokers
        self._ended = threading.Event()

    def answer(self, path: str) -> tuple[int, dict[str, Any]]:
        """What is answered to a GET."""
        self.asked[path] += 1
        shown = {"apiVersion": f"{GROUP}/{VERSION}", "metadata": {}}
        if path == ROOT:
            kind = {"name": self._metric, "namespaced": True, "kind": "ExternalMetricValueList", "verbs": ["get"]}
            return 200, {"apiVersion": "v1", "kind": "APIResourceList", "groupVersion": f"{GROUP}/{VERSION}"} | {
                "resources": [{**kind, "singularName": ""}]
            }
        if path.partition("?")[0].rpartition("/")[2] != self._metric:
            return 404, {"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404}
        items = [] if self.value is None else [{"metricName": self._metric, "value": str(self.value)}]
        stamp = {"metricLabels": {}, "timestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
        return 200, {**shown, "kind": "ExternalMetricValueList", "items": [{**item, **stamp} for item in items]}

    def scrape(self) -> None:
        """Scrapes until `end`. A broker that does not answer counts as one that says 0."""
        with httpx.Client(trust_env=False, timeout=5) as http:
            while not self._ended.wait(SCRAPE_S):
                told = [value for url in self._brokers() if (value := self._told(http, url)) is not None]
                self.value = max(told, default=0) or None

    def end(self) -> None:
        """Ends `scrape`."""
        self._ended.set()

    def _told(self, http: httpx.Client, url: str) -> int | None:
        try:
            lines = http.get(f"{url}/metrics").text.splitlines()
        except httpx.HTTPError:
            return None
        return next((int(float(line.split()[1])) for line in lines if line.startswith(f"{self._metric} ")), None)


@contextmanager
def serving(api: Kubernetes, folder: Path, metrics: ExternalMetrics) -> Iterator[None]:
    """Serve the metric, and wait until the API server says that the API is there."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, found = metrics.answer(self.path)
            body = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    authority = Authority()
    authority.issue(f"{SERVICE}.{NAMESPACE}.svc").write(folder)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    threads = [threading.Thread(target=work) for work in (server.serve_forever, metrics.scrape)]
    for thread in threads:
        thread.start()
    try:
        _register(api, server.server_port, authority.pem)
        yield
    finally:
        metrics.end()
        server.shutdown()
        for thread in threads:
            thread.join()
        server.server_close()


def _register(api: Kubernetes, port: int, ca: bytes) -> None:
    api.namespace(NAMESPACE)
    service = {"type": "ExternalName", "externalName": "localhost"}
    api.create({"apiVersion": "v1", "kind": "Service", "metadata": {"name": SERVICE}, "spec": service}, NAMESPACE)
    spec = {"group": GROUP, "version": VERSION, "groupPriorityMinimum": 100, "versionPriority": 100}
    spec |= {"service": {"name": SERVICE, "namespace": NAMESPACE, "port": port}, "caBundle": b64encode(ca).decode()}
    meta = {"name": f"{VERSION}.{GROUP}"}
    api.create({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": meta, "spec": spec})
    end = time.monotonic() + READY_S
    while not _available(found := api.get(f"/apis/apiregistration.k8s.io/v1/apiservices/{meta['name']}")):
        assert time.monotonic() < end, found.get("status")
        time.sleep(0.2)


def _available(service: dict[str, Any]) -> bool:
    conditions = service.get("status", {}).get("conditions", [])
    return any(one["type"] == "Available" and one["status"] == "True" for one in conditions)
