"""The Dockerfile: what it installs and sets, as whom it runs, and what its health check says."""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable

import pytest
import yaml
from packaging.specifiers import SpecifierSet

from seaweedq.settings import Settings
from tests.support.paths import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def instructions(name: str) -> list[str]:
    return re.findall(rf"^{name} (.*)$", DOCKERFILE, re.MULTILINE)


def variables() -> dict[str, str]:
    return dict(re.findall(r"(\w+)=(\S+)", instructions("ENV")[-1]))


def checks() -> list[tuple[str, list[str]]]:
    """The health checks of the image and of the compose file: what they ask for, and their command."""
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    image = json.loads(instructions("HEALTHCHECK")[0].partition("CMD ")[2])
    _, *service = compose["services"]["broker-1"]["healthcheck"]["test"]
    return [("/healthz", image), ("/readyz", service)]


def test_everything_that_is_copied_is_there_and_sent_to_the_build() -> None:
    sent = set(re.findall(r"^!(.*)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE))
    copied = {name for line in instructions("COPY") if "--from" not in line for name in line.split()[:-1]}
    assert copied == sent
    assert all((ROOT / name).exists() for name in copied)


def test_it_installs_extras_that_there_are_on_a_python_that_is_supported() -> None:
    (extras,) = re.findall(r"pip install '\.\[(.*)\]'", DOCKERFILE)
    assert set(extras.split(",")) == {"s3", "etcd"} <= PROJECT["optional-dependencies"].keys()
    assert SpecifierSet(PROJECT["requires-python"]).contains(instructions("ARG")[0].removeprefix("PYTHON="))


def test_it_does_not_run_as_root_and_owns_its_folder() -> None:
    (user,) = instructions("USER")
    number, group = user.split(":")
    assert int(number) > 0
    assert f"install -d -o {number} -g {group} {variables()['SEAWEEDQ_DATA_DIR']}" in DOCKERFILE


def test_its_variables_are_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = {name: value for name, value in variables().items() if name.startswith("SEAWEEDQ_")}
    assert {name.removeprefix("SEAWEEDQ_").lower() for name in ours} <= Settings.model_fields.keys()
    for name, value in ours.items():
        monkeypatch.setenv(name, value)
    assert instructions("EXPOSE") == [str(Settings().port)]


@pytest.mark.parametrize(("path", "command"), checks(), ids=["image", "compose"])
def test_a_health_check_tells_well_from_ill(path: str, command: list[str], serve: Callable[..., int]) -> None:
    asked: list[str] = []

    def answer(requested: str) -> tuple[int, bytes]:
        asked.append(requested)
        return (200, b"{}") if len(asked) == 1 else (503, b"{}")

    port = str(serve(answer))

    def check() -> int:
        assert command[0] == "python"
        environment = {**os.environ, "SEAWEEDQ_PORT": port, "http_proxy": "http://127.0.0.1:9"}
        return subprocess.run([sys.executable, *command[1:]], env=environment, timeout=30).returncode

    assert (check(), check()) == (0, 1)
    assert asked == [path, path]
