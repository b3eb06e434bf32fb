"""The cluster's secret and the first token: given, or drawn once for all; never shown."""

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from seaweedq.access.tokens import id_of
from seaweedq.broker.rpc.peer_keyring import secrets_of
from seaweedq.cli.server import credentials
from seaweedq.cli.server.credentials import SECRET_FILE, cluster_secret, draw_admin_token, secret_of
from seaweedq.errors import InvalidRequest
from seaweedq.settings import Settings

GIVEN = "0123456789abcdef"


@pytest.mark.parametrize("coordination", ["embedded", "etcd://a:1"])
def test_one_that_is_given_is_it_and_nothing_is_kept(tmp_path, coordination):
    settings = Settings(data_dir=tmp_path, cluster_secret=GIVEN, coordination=coordination)
    assert cluster_secret(settings) == GIVEN
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("bad", [GIVEN[:-1], f"{GIVEN} ", f"{GIVEN}\n{GIVEN}", f"{GIVEN}ä"])
def test_one_that_is_short_or_no_header_is_refused_without_being_shown(tmp_path, bad):
    with pytest.raises(InvalidRequest) as caught:
        cluster_secret(Settings(data_dir=tmp_path, cluster_secret=bad))
    assert GIVEN[:8] not in f"{caught.value.detail}{caught.value.fields}"


def test_etcd_needs_one_and_says_which_setting(tmp_path):
    with pytest.raises(InvalidRequest, match=r"cluster_secret.*SEAWEEDQ_CLUSTER_SECRET.*16 characters") as caught:
        cluster_secret(Settings(data_dir=tmp_path, coordination="etcd://a:1"))
    assert caught.value.fields["field"] == "cluster_secret"
    assert list(tmp_path.iterdir()) == []


def test_a_drawn_one_stays_is_of_this_folder_and_for_its_owner_alone(tmp_path):
    one, other = Settings(data_dir=tmp_path / "new" / "one"), Settings(data_dir=tmp_path / "other")
    drawn = cluster_secret(one)
    assert len(drawn) >= 32
    assert cluster_secret(one) == drawn != cluster_secret(other)
    assert [path.name for path in one.data_dir.iterdir()] == [SECRET_FILE]
    assert stat.S_IMODE((one.data_dir / SECRET_FILE).stat().st_mode) == 0o600


def test_one_that_was_put_there_counts_without_the_end_of_its_line(tmp_path):
    (tmp_path / SECRET_FILE).write_text(f"{GIVEN}\n")
    assert cluster_secret(Settings(data_dir=tmp_path)) == GIVEN


@pytest.mark.parametrize("content", [b"", b"short", b"\xff" * 20])
def test_a_damaged_one_is_refused_and_its_file_named(tmp_path, content):
    (tmp_path / SECRET_FILE).write_bytes(content)
    with pytest.raises(InvalidRequest, match=SECRET_FILE):
        cluster_secret(Settings(data_dir=tmp_path))
    assert (tmp_path / SECRET_FILE).read_bytes() == content


def test_all_who_draw_at_once_agree(tmp_path, monkeypatch):
    everybody = Barrier(8)
    draw = credentials.draw_file
    monkeypatch.setattr(credentials, "draw_file", lambda *given: (everybody.wait(30), draw(*given)))
    settings = Settings(data_dir=tmp_path)
    with ThreadPoolExecutor(8) as pool:
        found = [future.result() for future in [pool.submit(cluster_secret, settings) for _ in range(8)]]
    assert len(set(found)) == 1
    assert [path.name for path in tmp_path.iterdir()] == [SECRET_FILE]


def test_one_that_cannot_be_written_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(credentials.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        cluster_secret(Settings(data_dir=tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["cluster_secret", "etcd_password"])
def test_a_secret_may_be_in_a_file_and_not_in_both_places(tmp_path, name):
    path = tmp_path / "secret"
    path.write_text(f"{GIVEN}\n")
    assert secret_of(Settings(**{f"{name}_file": str(path)}), name) == GIVEN
    assert secret_of(Settings(**{name: GIVEN}), name) == GIVEN
    assert secret_of(Settings(), name) == ""
    with pytest.raises(InvalidRequest, match=f"{name} and {name}_file are both set") as caught:
        secret_of(Settings(**{name: GIVEN, f"{name}_file": str(path)}), name)
    assert GIVEN not in str(caught.value)
    with pytest.raises(InvalidRequest, match=f"{name}_file=.*cannot be read: No such file"):
        secret_of(Settings(**{f"{name}_file": str(tmp_path / "none")}), name)


def test_the_clusters_secret_of_a_file_is_checked_as_one_that_is_set(tmp_path):
    path = tmp_path / "secret"
    path.write_text("short")
    settings = Settings(data_dir=tmp_path, cluster_secret_file=str(path), coordination="etcd://a:1")
    with pytest.raises(InvalidRequest, match="at least 16 characters"):
        cluster_secret(settings)
    path.write_text(GIVEN)
    assert cluster_secret(settings) == GIVEN


def test_several_are_given_while_it_is_changed(tmp_path, caplog):
    good, other = "0123456789abcdef" * 2, "fedcba9876543210" * 2
    assert secrets_of(cluster_secret(Settings(data_dir=tmp_path, cluster_secret=f"{good},{other}"))) == (good, other)
    assert caplog.text == ""
    cluster_secret(Settings(data_dir=tmp_path, cluster_secret=f"{good},{GIVEN}"))
    assert "fewer than 32 characters" in caplog.text
    assert GIVEN not in caplog.text
    for bad in (f"{good},", f",{good}", f"{good},short", f"{good}, {good}", f"{good},,{good}"):
        with pytest.raises(InvalidRequest, match="each secret of cluster_secret"):
            cluster_secret(Settings(data_dir=tmp_path, cluster_secret=bad))


def test_it_is_drawn_once_for_its_owner_alone(tmp_path: Path, caplog) -> None:
    caplog.set_level("INFO")
    settings = Settings(data_dir=tmp_path, auth="required")
    draw_admin_token(settings)
    file = tmp_path / "admin-token"
    text = file.read_text()
    assert id_of(text)
    assert file.stat().st_mode & 0o777 == 0o600
    assert str(file) in caplog.text
    assert text not in caplog.text
    draw_admin_token(settings)
    assert file.read_text() == text


def test_none_is_drawn_where_none_is_needed(tmp_path: Path) -> None:
    draw_admin_token(Settings(data_dir=tmp_path))
    draw_admin_token(Settings(data_dir=tmp_path, auth="required", admin_token_file=str(tmp_path / "mine")))
    draw_admin_token(Settings(data_dir=tmp_path, auth="required", coordination="etcd://127.0.0.1:1"))
    assert list(tmp_path.iterdir()) == []
