"""Programs that know the OpenAPI document alone can work with a broker: a generated client, and one that follows the
links from answer to answer.
"""

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

from tests.support.http.requests import TABLE
from tests.support.paths import ROOT
from tests.support.processes.broker_process import BrokerProcess

pytestmark = pytest.mark.process
GENERATOR = ROOT / ".venv" / "generator" / "bin" / "openapi-python-client"
CONFIG = """
post_hooks: []
package_name_override: generated_seaweedq
content_type_overrides:
  application/x-ndjson: application/octet-stream
  application/vnd.apache.arrow.stream: application/octet-stream
"""
ENDLESS = ("streamTopic", "streamSubscription")
CHECKS = "not_a_server_error,status_code_conformance,response_schema_conformance"
WALKS, REACHED, LASTS_S = 20, 30, 240
LONG_WALKS = """
[phases.stateful]
max-steps = 50
[phases.stateful.inference]
algorithms = []
"""


@pytest.fixture(scope="module")
def broker(broker_processes: Callable[..., BrokerProcess]) -> BrokerProcess:
    return broker_processes()


@pytest.fixture
def generated(broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Imports a module of the client that was generated from what the broker serves."""
    generator = os.environ.get("SEAWEEDQ_GENERATOR") or str(GENERATOR)
    if not Path(generator).exists():
        refuse = pytest.fail if os.environ.get("CI") else pytest.skip
        refuse("there is no generator of clients: `make generator` installs it")
    (tmp_path / "config.yml").write_text(CONFIG)
    (tmp_path / "openapi.json").write_bytes(
        httpx.get(f"{broker.url}/openapi.json", timeout=30, trust_env=False).content
    )
    command = [generator, "generate", "--path", "openapi.json", "--config", "config.yml", "--meta", "none"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout
    assert "WARNING" not in done.stdout, done.stdout
    monkeypatch.syspath_prepend(tmp_path)

    def load(name: str) -> ModuleType:
        return importlib.import_module(f"generated_seaweedq.{name}")

    yield load
    for name in [name for name in sys.modules if name.startswith("generated_seaweedq")]:
        del sys.modules[name]


def snake(name: str) -> str:
    return "".join(f"_{each.lower()}" if each.isupper() else each for each in name)


@pytest.mark.long
def test_a_generated_client_publishes_pulls_and_acks(broker: BrokerProcess, generated: Callable[[str], Any]) -> None:
    for one in (route.operation for route in TABLE.routes if route.operation.id):
        assert generated(f"api.{one.tag}.{snake(one.id)}").sync_detailed
    models = generated("models")
    client = generated("client").Client(base_url=broker.url)

    def call(tag: str, name: str, *path: Any, status: int = 200, **more: Any) -> Any:
        answer = generated(f"api.{tag}.{name}").sync_detailed(*path, client=client, **more)
        assert answer.status_code == status, answer.content
        return answer.parsed

    call("topics", "create_topic", "orders", status=201)
    call("subscriptions", "create_subscription", "orders", "billing", status=201)
    message = models.Envelope.from_dict({"key": "k", "value": {"n": 1}})
    published = call("publish", "publish_messages", "orders", body=message)
    assert published.count == 1
    pulled = call("subscriptions", "pull_messages", "orders", "billing", body=models.PullRequest(wait_s=5.0))
    assert [one.id for one in pulled.messages] == published.ids
    acked = call("subscriptions", "ack_messages", "orders", "billing", body=models.AckRequest(ids=published.ids))
    assert (acked.acked, acked.unknown) == (1, [])
    problem = call("topics", "get_topic", "absent", status=404)
    client.get_httpx_client().close()
    assert problem.status == 404
    assert problem.type_.endswith("topic-not-found")


def impatient(document: Any) -> Any:
    """The document without tokens, which would be made up, long waits, large topics, and what never ends."""
    if isinstance(document, list):
        return [impatient(one) for one in document]
    if not isinstance(document, dict):
        return document
    found = {key: impatient(one) for key, one in document.items() if key != "security" and not _is_endless(one)}
    for name, most in (("wait_s", 0.02), ("initial_segments", 4), ("parts", 4)):
        if isinstance(found.get(name), dict) and "schema" not in found:
            found[name]["maximum"] = most
    if found.get("name") == "wait_s":
        found["schema"]["maximum"] = 0.02
    return found


def _is_endless(operation: Any) -> bool:
    return isinstance(operation, dict) and operation.get("operationId") in ENDLESS


@pytest.mark.long
def test_walks_along_the_links_meet_no_strange_answer(broker: BrokerProcess, tmp_path: Path) -> None:
    document = impatient(httpx.get(f"{broker.url}/openapi.json", timeout=30, trust_env=False).json())
    (tmp_path / "openapi.json").write_text(json.dumps(document))
    (tmp_path / "schemathesis.toml").write_text(LONG_WALKS)
    command = [sys.executable, "-m", "schemathesis.cli", "run", "openapi.json", "--url", broker.url]
    options = ["--phases", "stateful", "--max-examples", str(WALKS), "--seed", "1", "--checks", CHECKS]
    done = subprocess.run(
        [*command, *options], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=LASTS_S
    )
    assert done.returncode == 0, done.stdout[-8000:]
    text = httpx.get(f"{broker.url}/metrics", timeout=30, trust_env=False).text
    answered = set(re.findall(r'^seaweedq_http_responses_total\{method="(\w+)",route="([^"]+)",status="2', text, re.M))
    assert len(answered) >= REACHED, (sorted(answered), done.stdout[-3000:])
