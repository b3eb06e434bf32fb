"""A folder that the broker's user may not write is named at the start, with that user."""

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from seaweedq.cli.server.machine import check_folders
from seaweedq.settings import Settings
from tests.support.processes.broker_process import BrokerProcess

USER = 10001


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder of another user, for a test that runs as no root. All users may reach it, unlike pytest's own."""
    if os.name != "posix":
        pytest.skip("there are no users")
    with tempfile.TemporaryDirectory() as made:
        path = Path(made)
        path.chmod(0o755 if os.geteuid() == 0 else 0o555)
        yield path
        path.chmod(0o755)


@pytest.fixture
def user() -> Iterator[int]:
    """The user of the test: not root, which may write everywhere."""
    if os.geteuid():
        yield os.geteuid()
        return
    os.seteuid(USER)
    try:
        yield USER
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("below", [".", "data", "data/deeper"])
def test_a_data_folder_of_another_user(folder: Path, user: int, below: str) -> None:
    wanted = folder / below
    with pytest.raises(PermissionError, match=f"^user {user} cannot write to data folder {wanted}: ") as refused:
        check_folders(Settings(data_dir=wanted))
    make = "" if below == "." else f"mkdir -p {wanted} && "
    help_text = f"{folder} belongs to user {folder.stat().st_uid}; {make}chown -R {user}:{os.getegid()} {wanted}"
    assert help_text in str(refused.value)


@pytest.mark.parametrize("below", ["file", "file/data"])
def test_a_data_folder_at_a_file(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").touch()
    told = f"^the data folder {tmp_path / below} cannot be created: {tmp_path / 'file'} is not a folder$"
    with pytest.raises(NotADirectoryError, match=told):
        check_folders(Settings(data_dir=tmp_path / below))


def test_what_another_user_left_in_it(folder: Path) -> None:
    if os.geteuid():
        pytest.skip("root alone makes files of others")
    (folder / "lost+found").mkdir(mode=0o700)  # of the file system, and no business of the broker
    (folder / "journals").mkdir()
    os.chown(folder, USER, USER)
    os.seteuid(USER)
    try:
        with pytest.raises(PermissionError, match=f"{folder}/journals belongs to user 0"):
            check_folders(Settings(data_dir=folder))
    finally:
        os.seteuid(0)
    os.chown(folder / "journals", USER, USER)
    os.seteuid(USER)
    try:
        check_folders(Settings(data_dir=folder))
    finally:
        os.seteuid(0)


def test_a_local_store_of_another_user(folder: Path, user: int) -> None:
    with (
        tempfile.TemporaryDirectory() as own,
        pytest.raises(PermissionError, match=f"^user {user} cannot write to store {folder}: "),
    ):
        check_folders(Settings(data_dir=Path(own), store=f"file://{folder}"))


def test_folders_of_ones_own_are_made(tmp_path: Path) -> None:
    check_folders(Settings(data_dir=tmp_path / "a" / "b", store=f"file://{tmp_path}/c"))
    assert (tmp_path / "a" / "b").is_dir()
    assert (tmp_path / "c").is_dir()


@pytest.mark.process
def test_what_a_broker_makes_is_for_no_other_user(tmp_path: Path) -> None:
    """In its data folder, and in a local store elsewhere, which the group may read."""
    elsewhere = tmp_path / "elsewhere"
    broker = BrokerProcess(tmp_path / "data", "--store", f"file://{elsewhere}")
    try:
        broker.start()
        topic = f"{broker.url}/v1/topics/t"
        assert httpx.post(f"{topic}/messages", json={"value": 1}, timeout=30, trust_env=False).status_code == 200
        upload = httpx.post(f"{topic}/uploads", json={"size": 3}, timeout=30, trust_env=False).json()
        assert httpx.put(upload["url"], content=b"abc", timeout=30, trust_env=False).status_code == 201
        assert httpx.post(f"{topic}/flush", timeout=30, trust_env=False).status_code == 200
    finally:
        broker.terminate()
    assert stat.S_IMODE(broker.data_dir.stat().st_mode) == 0o700
    made = [*broker.data_dir.rglob("*"), elsewhere, *elsewhere.rglob("*")]
    assert [one for one in made if one.suffix == ".parquet"]
    assert not [one for one in made if one.stat().st_mode & stat.S_IRWXO]
    assert {stat.S_IMODE(one.stat().st_mode) for one in elsewhere.rglob("*.parquet")} == {0o640}
