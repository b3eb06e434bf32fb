"""The wheel runs elsewhere: what it brings alone is the client and the commands, small and without Arrow."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile

import httpx
import pytest

from tests.support.installed import MB, Installed, with_base, with_everything
from tests.support.paths import ROOT
from tests.support.processes.broker_process import free_port

pytestmark = pytest.mark.process

MOST_BYTES = 44 * MB  # 28 are dependencies: a third is pydantic, which typer needs; Arrow alone would be more than all
TEN_MESSAGES = """
import os
from seaweedq import Client

with Client(os.environ["SEAWEEDQ_URL"]) as client:
    client.create_topic("ten", key_field="k")
    with client.producer("ten") as producer:
        for number in range(10):
            producer.send({"k": f"key-{number}"})
    for message in client.subscribe("ten", "reader", start="earliest", idle_timeout_s=0.5):
        print(message.key)
        message.ack()
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that `python -m build` makes, by way of the source distribution."""
    missing = [name for name in ("build", "hatchling") if find_spec(name) is None]
    if missing and os.environ.get("CI"):
        pytest.fail(f"{missing} are not installed, and CI needs them")
    if missing:
        pytest.skip(f"a wheel needs {', '.join(missing)}: pip install -e '.[dev]'")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    [found] = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """What `pip install seaweedq` gives."""
    return with_base(wheel, tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def whole(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """What `pip install seaweedq[all]` gives."""
    return with_everything(wheel, tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def url(whole: Installed) -> Iterator[str]:
    """A broker of the wheel."""
    port = free_port()
    command = [whole.folder / "bin" / "seaweedq", "serve", "--port", str(port)]
    with (whole.folder / "broker.log").open("wb") as log:
        broker = subprocess.Popen(command, cwd=whole.folder, env=whole.environment(), stdout=log, stderr=log)
    transport = httpx.HTTPTransport(retries=8)
    try:
        with httpx.Client(transport=transport, timeout=60, trust_env=False) as client:
            assert client.get(f"http://127.0.0.1:{port}/healthz").status_code == 200
        yield f"http://127.0.0.1:{port}"
    finally:
        broker.kill()
        broker.wait()


@pytest.mark.long
def test_it_has_every_file_of_the_package(wheel: Path) -> None:
    listed = set(ZipFile(wheel).namelist())
    ours = {path for path in (ROOT / "seaweedq").rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert {str(path.relative_to(ROOT)) for path in ours} | {"pyspark_seaweedq.py"} <= listed
    assert not [name for name in listed if name.startswith(("tests/", "docs/", "examples/"))]


@pytest.mark.long
def test_the_base_is_small(base: Installed) -> None:
    there = {path.name for path in base.packages.iterdir()}
    assert {"seaweedq", "httpx", "msgspec", "typer"} <= there
    assert not {"pyarrow", "numpy", "fastapi", "uvicorn", "aiohttp", "fsspec"} & there
    print(f"{base.bytes / MB:.1f} MB")
    assert base.bytes <= MOST_BYTES, f"{base.bytes / MB:.1f} MB"


@pytest.mark.long
def test_client_and_commands_of_the_base_work_with_a_broker(base: Installed, whole: Installed, url: str) -> None:
    sent = base.run("python", "-c", TEN_MESSAGES, url=url)
    assert sorted(sent.stdout.split()) == [f"key-{number}" for number in range(10)], sent.stderr
    lines = "".join(f'{{"k": "line-{number}"}}\n' for number in range(100))
    published = base.run("seaweedq", "publish", "lines", url=url, stdin=lines)
    assert published.returncode == 0, published.stderr
    pulled = base.run("seaweedq", "pull", "lines", "-s", "reader", "--start", "earliest", "--max", "100", url=url)
    assert len(pulled.stdout.splitlines()) == 100, pulled.stderr
    counted = whole.run("seaweedq", "sql", "SELECT count(*) AS n FROM lines", "-o", "csv", url=url)
    assert counted.stdout.split() == ["n", "100"], counted.stderr
    listed = base.run("seaweedq", "topic", "list", url=url)
    assert re.search(r"\blines\b", listed.stdout), listed.stderr


@pytest.mark.long
def test_ten_messages_import_no_arrow_where_it_is_installed(whole: Installed, url: str) -> None:
    done = whole.run("python", "-X", "importtime", "-c", TEN_MESSAGES.replace('"ten"', '"more"'), url=url)
    assert len(done.stdout.split()) == 10, done.stderr
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "msgspec" in imported
    assert not {"pyarrow", "numpy", "pydantic", "fsspec", "aiohttp"} & imported


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "extra"),
    [
        (("serve",), "server"),
        (("verify", "ten"), "server"),
        (("bench", "--embedded"), "server"),
        (("demo",), "server,sql"),
        (("demo", "--flights"), "server,sql"),
        (("sql", "SELECT 1"), "sql"),
        (("topic", "history", "ten", "--plot", "ten.png"), "demo"),
        (("publish", "ten", "--input-format", "csv"), "arrow"),
    ],
)
def test_what_the_base_lacks_is_said(base: Installed, url: str, command: tuple[str, ...], extra: str) -> None:
    done = base.run("seaweedq", *command, url=url, stdin="a,b\n1,2\n")
    assert done.returncode == 2
    assert f"pip install 'seaweedq[{extra}]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.long
def test_methods_say_what_the_base_lacks(base: Installed, url: str) -> None:
    program = """
import os
from seaweedq import Client
from seaweedq.errors import MissingExtra

with Client(os.environ["SEAWEEDQ_URL"]) as client:
    for call in (lambda: client.read_table("t"), lambda: list(client.read_segment("t", 0, 0, 1)),
                 lambda: client.producer("t").send_table(None)):
        try:
            call()
        except MissingExtra as error:
            print(error.fields["extra"], error.fields["package"])
"""
    done = base.run("python", "-c", program, url=url)
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["arrow"] * 3, done.stderr


@pytest.mark.long
def test_every_command_of_the_base_has_help(base: Installed) -> None:
    program = """
import sys
from seaweedq.cli.main import LISTED, load_command
for name in LISTED:
    if name != "serve":
        load_command(name)
print(len(LISTED))
"""
    done = base.run("python", "-c", program)
    assert int(done.stdout) > 10, done.stderr
