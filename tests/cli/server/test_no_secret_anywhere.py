"""No secret is where others may look: the log at debug, the audit, the store, coordination, `ps`, errors."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from seaweedq.access.tokens import draw
from seaweedq.clock import SystemIds
from tests.support.processes.broker_process import BrokerProcess

pytestmark = pytest.mark.process

CLUSTER = "the-secret-of-this-cluster-of-one-broker"


def everything(folder: Path) -> Iterator[tuple[Path, bytes]]:
    """All files below a folder, and what is in them."""
    for file in folder.rglob("*"):
        if file.is_file() and not file.is_symlink():
            yield file, file.read_bytes()


@pytest.mark.long
def test_no_secret_is_shown(broker_process: Callable[..., BrokerProcess], tmp_path: Path) -> None:
    (file := tmp_path / "admin").write_text(admin := draw(SystemIds()))
    env = {"SEAWEEDQ_CLUSTER_SECRET": CLUSTER}
    options = ("--auth", "required", "--admin-token-file", str(file), "--log-level", "debug", "--flush-max-age-s", "1")
    broker = broker_process(*options, env=env, forks=False)
    with httpx.Client(base_url=broker.url, trust_env=False, timeout=30) as http:

        def ask(method: str, path: str, by: str | None, **more: object) -> httpx.Response:
            headers = {"authorization": f"Bearer {by}"} if by else {}
            return http.request(method, path, headers=headers, **more)  # type: ignore[arg-type]

        grants = [{"actions": ["describe", "create", "publish", "read", "consume", "subscribe"], "topics": ["*"]}]
        assert ask("PUT", "/v1/principals/p", admin, json={"grants": grants}).status_code == 201
        token = ask("POST", "/v1/tokens", admin, json={"principal": "p"}).json()["token"]
        child = ask("POST", "/v1/tokens", token, json={"note": "a child"}).json()["token"]
        told = [
            ask(method, path, by, json=content).text
            for by in (None, admin, token, child, token[:-1] + "0")
            for method, path, content in (
                ("POST", "/v1/topics/t/messages", {"value": 1}),
                ("PUT", "/v1/topics/t/subscriptions/s", {"start": "earliest"}),
                ("POST", "/v1/topics/t/subscriptions/s/pull", {}),
                ("GET", "/v1/whoami", None),
                ("GET", "/v1/tokens", None),
                ("GET", f"/v1/tokens/{token}", None),
                ("GET", "/v1/topics?page_token=" + token, None),
                ("DELETE", f"/v1/topics/{token}", None),
                ("PATCH", "/v1/topics/t", {"x": 1}),
                ("POST", "/internal/status", None),
                ("GET", "/v1/cluster", None),
                ("GET", "/metrics", None),
                ("GET", "/openapi.json", None),
            )
        ]
        until_s = time.monotonic() + 20
        while not list(broker.store.glob("topics/seaweedq.audit/**/*.parquet")) and time.monotonic() < until_s:
            time.sleep(0.2)
    assert broker.process
    with open(f"/proc/{broker.process.pid}/cmdline", "rb") as shown:
        ps = shown.read()
    broker.terminate()
    secrets = [CLUSTER, *(one.split("_")[2] for one in (admin, token, child))]
    kept = dict(everything(broker.data_dir))
    assert any("seaweedq.audit" in str(path) and path.suffix == ".parquet" for path in kept)
    for secret in secrets:
        assert secret not in broker.log
        assert not [one for one in told if secret in one]
        assert secret.encode() not in ps
        assert [path for path, content in kept.items() if secret.encode() in content] == []
