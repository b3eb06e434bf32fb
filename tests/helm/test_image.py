"""The Dockerfile: what it installs and sets, as whom it runs, and what its health check says."""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.specifiers import SpecifierSet

from seaweedq.settings import Settings
from tests.support.paths import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture
def image_lock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """scripts/image_lock.py as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import image_lock

    return image_lock


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


def test_it_installs_nothing_but_what_the_locks_name() -> None:
    steps = [step for line in instructions("RUN") for step in line.split("&&")]
    installing = [step for step in steps if re.search(r"/pip .*\b(install|wheel) ", step)]
    assert len(installing) == 5
    assert all("--no-deps" in step and ("--require-hashes" in step or "--no-index" in step) for step in installing)
    assert all("--no-build-isolation" in step for step in installing if "/pip wheel " in step)


def test_dependencies_come_before_the_source() -> None:
    first, *_ = DOCKERFILE.split(" AS source")
    assert "-r requirements.lock" in first
    assert re.findall("^COPY (.*)$", first, re.MULTILINE) == ["deploy/build.lock deploy/requirements.lock ./"]
    *_, dependencies, source = instructions("COPY")
    assert dependencies.startswith("--from=dependencies ")
    assert source.startswith("--from=source ")


def test_no_installer_is_left() -> None:
    (removes,) = (line for line in instructions("RUN") if "pip uninstall" in line)
    assert DOCKERFILE.index(removes) > DOCKERFILE.rindex("FROM ")
    assert "--without-pip /opt/seaweedq" in DOCKERFILE
    assert {"ensurepip", "pip*"} <= {path.rpartition("/")[2] for path in removes.split() if path.startswith("/usr/")}


def test_the_locks_satisfy_the_project(image_lock: Any) -> None:
    assert list(image_lock.complaints()) == []
    locked = image_lock.pinned(ROOT / "deploy" / "requirements.lock")
    assert len(locked) > 50
    assert "pip" not in locked


def test_a_lock_that_is_late_or_loose_is_refused(
    image_lock: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("requirements.lock", "build.lock"):
        (tmp_path / name).write_text((ROOT / "deploy" / name).read_text())
    monkeypatch.setattr(image_lock, "DEPLOY", tmp_path)
    assert image_lock.main(["--check"]) == 0
    lock = (tmp_path / "requirements.lock").read_text()
    (tmp_path / "requirements.lock").write_text(re.sub(r"^pyarrow==\S+", "pyarrow==1.0.0", lock, flags=re.MULTILINE))
    assert image_lock.main(["--check"]) == 1
    assert "requirements.lock: pyarrow>=" in capsys.readouterr().err
    (tmp_path / "requirements.lock").write_text(f"{lock}left-pad==1.0\n")
    assert image_lock.main(["--check"]) == 1
    assert "without a version or a hash: left-pad==1.0" in capsys.readouterr().err


@pytest.mark.process
def test_each_image_gets_the_digest_that_its_registry_names(
    image_lock: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []
    printed = ""
    copies = tuple(tmp_path / name for name in ("Dockerfile", "docker-compose.yml"))
    for copy in copies:
        copy.write_text(re.sub("@sha256:[0-9a-f]{64}$", "", (ROOT / copy.name).read_text(), flags=re.MULTILINE))

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        assert command[0] == "skopeo"
        asked.append(command[-1].removeprefix("docker://"))
        return subprocess.CompletedProcess(command, 0, printed)

    monkeypatch.setattr(image_lock, "IMAGES", copies)
    monkeypatch.setattr(image_lock.shutil, "which", lambda tool, **_: tool)
    monkeypatch.setattr(image_lock.subprocess, "run", run)
    for digit in "ab":
        printed = f"sha256:{digit * 64}\n"
        assert image_lock.main(["--digests"]) == 0
        base, compose = (copy.read_text() for copy in copies)
        assert re.search(rf"^ARG BASE=docker.io/library/python:[0-9.]+-slim-bookworm@{printed}", base, re.MULTILINE)
        named = re.findall(r"image: (\S+)", compose)
        assert [one for one in named if not one.endswith(f"@{printed.strip()}")] == [f"seaweedq:{PROJECT['version']}"]
    assert {one.partition("@")[0] for one in named if "@" in one} < set(asked)
    assert len(asked) == 2 * len(set(asked)) == 8, "each tag is asked for once a run"
    assert not [tag for tag in asked if not re.search(r":v?\d+\.\d+(\.\d+)?(-[a-z-]+)?$", tag)]
    before, printed = [copy.read_text() for copy in copies], "manifest unknown"
    assert image_lock.main(["--digests"]) == 1
    assert "skopeo gives no digest" in capsys.readouterr().err
    assert [copy.read_text() for copy in copies] == before


def test_it_says_what_it_is() -> None:
    labels = dict(re.findall(r'org\.opencontainers\.image\.([\w.]+)="([^"]*)"', instructions("LABEL")[0]))
    assert (labels["version"], labels["licenses"]) == (PROJECT["version"], PROJECT["license"])
    assert {"title", "description", "revision", "base.name"} <= labels.keys()
    # A label with the commit makes all instructions behind it run again.
    assert DOCKERFILE.index("LABEL ") > max(DOCKERFILE.index(line) for line in instructions("COPY"))


def test_its_python_is_supported() -> None:
    (version,) = re.findall(r"^BASE=\S+/python:([\d.]+)-", instructions("ARG")[0])
    assert SpecifierSet(PROJECT["requires-python"]).contains(version)


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


@pytest.mark.process
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


def test_the_image_stays_below_600_mb(image_lock: Any) -> None:
    """Its base, without pip, has 120 MB, and seaweedq itself 10 MB; the rest is what the lock names."""
    names = image_lock.pinned(ROOT / "deploy" / "requirements.lock")
    files = [Path(str(file.locate())) for name in names for file in metadata.files(name) or []]
    size = sum(file.stat().st_size for file in files if file.is_file())
    assert 200_000_000 < size < 470_000_000
