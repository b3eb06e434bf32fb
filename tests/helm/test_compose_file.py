"""docker-compose.yml: what its services are given, wait for and keep."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from seaweedq.broker.access.callers import AdminToken
from seaweedq.cli.server.credentials import cluster_secret
from seaweedq.cli.server.given_settings import settings_of
from seaweedq.settings import Settings
from tests.support.paths import ROOT

BIN = Path(sys.executable).parent
BROKERS = ("broker-1", "broker-2", "broker-3")


@pytest.fixture
def compose() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


@pytest.fixture
def services(compose: dict[str, Any]) -> dict[str, Any]:
    return compose["services"]


def example() -> dict[str, str]:
    """The variables of .env.example."""
    lines = (ROOT / ".env.example").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def filled() -> dict[str, str]:
    """The same with secrets put in."""
    return {name: value or "0123456789abcdef" * 2 for name, value in example().items()}


def environment(service: dict[str, Any]) -> dict[str, str]:
    """A service's variables with those of a `.env` filled in."""
    return {
        name: re.sub(r"\$\{(\w+):\?[^}]*\}", lambda found: filled()[found[1]], value)
        for name, value in service["environment"].items()
    }


def version(image: str) -> tuple[int, ...]:
    return tuple(int(part) for part in image.rpartition(":v" if ":v" in image else ":")[2].split("."))


@pytest.mark.parametrize("name", BROKERS)
def test_a_broker_gets_settings_of_a_cluster(
    name: str, services: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = {key: value for key, value in environment(services[name]).items() if key.startswith("SEAWEEDQ_")}
    assert {key.removeprefix("SEAWEEDQ_").lower() for key in ours} <= Settings.model_fields.keys()
    for key, value in ours.items():
        monkeypatch.setenv(key, value)
    settings = settings_of(None, {})
    assert (settings.name, settings.advertise_url) == (name, f"http://{name}:8080")
    assert settings.allowed_hosts.split(",")[:3] == list(BROKERS)
    assert settings.coordination.removeprefix("etcd://").split(":")[0] in services
    assert re.sub(r"https?://([^:]+):.*", r"\1", settings.s3_endpoints) in services
    assert (settings.journal_kind, settings.store.split("/")[2]) == ("object", "seaweedq")
    assert cluster_secret(settings)
    assert settings.peer_port
    assert not any(str(settings.peer_port) in port for port in services[name]["ports"])
    grace_s = int(services[name]["stop_grace_period"].removesuffix("s"))
    assert grace_s >= settings.shutdown_delay_s + settings.shutdown_s + 10


@pytest.mark.process
def test_brokers_need_the_admins_token_and_it_leaves_their_environment(
    services: dict[str, Any], tmp_path: Path
) -> None:
    given = environment(services["broker-1"])
    assert (given["SEAWEEDQ_AUTH"], given["SEAWEEDQ_ADMIN_TOKEN_FILE"]) == ("required", "/tmp/admin-token")
    shell, options, script = services["broker-1"]["entrypoint"]
    (tmp_path / "seaweedq").write_text("#!/bin/sh\nenv\n")
    (tmp_path / "seaweedq").chmod(0o755)
    written = script.replace("$$", "$").replace("/tmp/admin-token", str(tmp_path / "admin-token"))
    variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "ADMIN_TOKEN": given["ADMIN_TOKEN"]}
    done = subprocess.run([shell, options, written], env=variables, capture_output=True, text=True, check=True)
    assert given["ADMIN_TOKEN"] not in done.stdout
    file = tmp_path / "admin-token"
    assert (file.read_text(), file.stat().st_mode & 0o777) == (given["ADMIN_TOKEN"], 0o600)
    AdminToken(file).require()


def test_brokers_differ_in_name_url_and_port_alone(services: dict[str, Any]) -> None:
    own = {"SEAWEEDQ_NAME", "SEAWEEDQ_ADVERTISE_URL"}
    shared = [{k: v for k, v in services[name]["environment"].items() if k not in own} for name in BROKERS]
    assert shared[0] == shared[1] == shared[2]
    assert [services[name]["ports"] for name in BROKERS] == [[f"127.0.0.1:{port}:8080"] for port in (8081, 8082, 8083)]


def test_nothing_else_is_published(services: dict[str, Any]) -> None:
    published = {name: service["ports"] for name, service in services.items() if "ports" in service}
    assert published.keys() == {*BROKERS, "brokers"}
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)


def test_the_common_address_is_one_that_brokers_answer_to(services: dict[str, Any]) -> None:
    assert "brokers" in services["broker-1"]["environment"]["SEAWEEDQ_ALLOWED_HOSTS"].split(",")


def test_one_service_builds_the_image_of_all_brokers(services: dict[str, Any]) -> None:
    assert [name for name, service in services.items() if "build" in service] == ["broker-1"]
    assert len({services[name]["image"] for name in BROKERS}) == 1


def test_podman_takes_it_too(services: dict[str, Any]) -> None:
    options = {mount.partition(":")[2] for name in BROKERS for mount in services[name]["tmpfs"]}
    assert options == {"", "mode=1777"}  # of a tmpfs podman refuses uid= and gid=
    others = {service["image"] for name, service in services.items() if name not in BROKERS}
    assert all("." in image.split("/")[0] for image in others)  # it asks which registry is meant


def test_whoever_is_waited_for_says_when_it_is_ready(services: dict[str, Any]) -> None:
    waits = {
        (on, how["condition"]) for service in services.values() for on, how in service.get("depends_on", {}).items()
    }
    assert waits == {
        ("etcd", "service_healthy"),
        ("seaweedfs", "service_healthy"),
        ("bucket", "service_completed_successfully"),
    }
    assert all("healthcheck" in services[on] for on, condition in waits if condition == "service_healthy")
    assert all(services[name]["depends_on"].keys() == {on for on, _ in waits} for name in BROKERS)


def test_the_store_has_the_brokers_keys_and_bucket(services: dict[str, Any]) -> None:
    keys = environment(services["seaweedfs"])
    assert keys.items() <= environment(services["broker-1"]).items()
    assert "s3.bucket.create -name seaweedq'" in services["bucket"]["command"][0]
    assert services["bucket"]["image"] == services["seaweedfs"]["image"]


def test_versions_are_those_that_are_safe(services: dict[str, Any]) -> None:
    assert version(services["etcd"]["image"]) >= (3, 5, 30)
    assert version(services["seaweedfs"]["image"]) >= (4, 18)


def test_what_has_to_survive_is_on_volumes(compose: dict[str, Any], services: dict[str, Any]) -> None:
    mounted = {name: service["volumes"][0].split(":") for name, service in services.items() if "volumes" in service}
    kept = {name: mount for name, mount in mounted.items() if not mount[0].startswith("./")}
    assert kept.keys() == {"etcd", "seaweedfs"} == compose["volumes"].keys()
    assert f"--data-dir={kept['etcd'][1]}" in services["etcd"]["command"]
    assert f"-dir={kept['seaweedfs'][1]} " in services["seaweedfs"]["command"]


def test_the_example_has_every_secret_and_no_other() -> None:
    needed = set(re.findall(r"\$\{(\w+)[:}]", (ROOT / "docker-compose.yml").read_text()))
    assert needed == example().keys()


def test_the_example_holds_no_secret_that_somebody_might_leave_in() -> None:
    assert {name for name, value in example().items() if value} == {"AWS_ACCESS_KEY_ID"}


@pytest.fixture
def compose_load() -> Callable[[dict[str, str]], subprocess.CompletedProcess[str]]:
    """Load the file as compose does, with these variables."""
    program = BIN / "compose-load"
    if not program.exists():
        pytest.skip(
            "compose-load: not built here, so compose's own loader did not read the file; `make kube` builds it"
        )
    command = [str(program), str(ROOT / "docker-compose.yml")]
    return lambda given: subprocess.run(command, env=given, capture_output=True, text=True)


@pytest.mark.process
def test_compose_itself_loads_it(
    compose_load: Callable[[dict[str, str]], subprocess.CompletedProcess[str]], services: dict[str, Any]
) -> None:
    loaded = compose_load(filled())
    assert (loaded.returncode, loaded.stderr) == (0, "")
    assert json.loads(loaded.stdout)["services"].keys() == services.keys()


@pytest.mark.process
def test_compose_itself_asks_for_the_secrets(
    compose_load: Callable[[dict[str, str]], subprocess.CompletedProcess[str]],
) -> None:
    refused = compose_load({})
    assert refused.returncode == 1
    assert all(f"required variable {name} is missing a value: see .env.example" in refused.stderr for name in example())
