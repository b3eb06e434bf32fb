"""The marker that the chart runs beside an autoscaler, as the chart renders it, between stand-ins of what it asks."""

import http.server
import json
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.http.certificates import Authority

pytestmark = pytest.mark.process
COST = "controller.kubernetes.io/pod-deletion-cost"
PODS = "/api/v1/namespaces/queues/pods"
LABELS = "labelSelector=app.kubernetes.io%2Finstance%3Dqueue%2Capp.kubernetes.io%2Fcomponent%3Dbroker"
WITHIN_S = 60.0


class ApiServer:
    """Pods with their annotations. `patched` is released at each change."""

    def __init__(self, pods: dict[str, dict[str, str]]) -> None:
        self.pods, self.refused = pods, 0
        self.patched = threading.Semaphore(0)

    def answer(self, method: str, path: str, token: str | None, body: Any) -> tuple[int, Any]:
        """Lists pods, or merges annotations."""
        if token != "Bearer of-the-account":
            self.refused += 1
            return 401, {}
        if (method, path) == ("GET", f"{PODS}?{LABELS}"):
            return 200, {"items": [{"metadata": {"name": name, "annotations": has}} for name, has in self.pods.items()]}
        name = path.removeprefix(f"{PODS}/").removesuffix("/status")
        assert (method, path) == ("PATCH", f"{PODS}/{name}/status")
        cost = body["metadata"]["annotations"][COST]
        self.pods[name] = {COST: cost} if cost else {}
        self.patched.release()
        return 200, {}


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[Callable[[ApiServer], int]]:
    """Serves an API server on a loopback port over TLS; the folder has `ca.crt` and `token`, as a pod has them."""
    authority, made = Authority(), list[http.server.ThreadingHTTPServer]()
    (tmp_path / "ca.crt").write_bytes(authority.pem)
    (tmp_path / "token").write_text("of-the-account")
    pair = authority.issue("127.0.0.1").write(tmp_path / "tls")

    def listen(api: ApiServer) -> int:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                data = self.rfile.read(int(self.headers.get("content-length", 0)))
                token, asked = self.headers.get("authorization"), json.loads(data) if data else None
                status, found = api.answer(self.command, self.path, token, asked)
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(found).encode())

            do_PATCH = do_GET

            def log_message(self, *args: Any) -> None:
                """Nothing."""

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(pair["tls_cert_file"], pair["tls_key_file"])
        server.socket = tls.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever).start()
        made.append(server)
        return server.server_port

    yield listen
    for server in made:
        server.shutdown()
        server.server_close()


def test_only_the_pod_of_the_broker_to_stop_first_is_marked(
    render: Callable[..., dict[str, Any]],
    serve: Callable[..., int],
    listening: Callable[[ApiServer], int],
    tmp_path: Path,
) -> None:
    api, statuses = ApiServer({"queue-a": {COST: "-1"}, "queue-b": {}, "queue-c": {}}), iter([503])
    told = {"first_to_stop": "queue-b.1f2e"}
    brokers = serve(lambda path: (next(statuses, 200), json.dumps(told).encode()))
    made = render("minimal", autoscaling={"enabled": True})["MarkerDeployment"]
    (container,) = made["spec"]["template"]["spec"]["containers"]
    variables = {one["name"]: one["value"] for one in container["env"]}
    variables |= {"SERVICE": f"http://127.0.0.1:{brokers}", "ACCOUNT": str(tmp_path), "PERIOD_S": "0.05"}
    variables |= {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(listening(api))}
    command = [sys.executable, *container["command"][1:]]
    with subprocess.Popen(command, env={**os.environ, **variables}, stderr=subprocess.PIPE) as marker:
        try:
            assert all(api.patched.acquire(timeout=WITHIN_S) for _ in range(2))
            assert api.pods == {"queue-a": {}, "queue-b": {COST: "-1"}, "queue-c": {}}
            told["first_to_stop"] = "queue-c.2a3b"
            assert all(api.patched.acquire(timeout=WITHIN_S) for _ in range(2))
            assert api.pods == {"queue-a": {}, "queue-b": {}, "queue-c": {COST: "-1"}}
        finally:
            marker.terminate()
        _, printed = marker.communicate(timeout=WITHIN_S)
    assert (marker.returncode, api.refused) == (0, 0)
    assert printed.decode().startswith("GET /v1/cluster: 503")
