"""The token of an embedded broker that may do everything."""

from pathlib import Path

from seaweedq.access.tokens import id_of
from seaweedq.cli.server.credentials import draw_admin_token
from seaweedq.settings import Settings


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
