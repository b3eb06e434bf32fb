"""What an error says to install: from the checkout, where the installation came from one, else from the index."""

import json
from pathlib import Path

import pytest

from seaweedq.errors import MissingExtra
from seaweedq.extras import install_command, needs


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "a checkout"
    folder.mkdir()
    (folder / "pyproject.toml").touch()
    return folder


def installed(folder: Path, monkeypatch: pytest.MonkeyPatch, origin: object) -> None:
    """Puts an installation first on the path: `origin` is what pip wrote of where it came from."""
    told = folder / "site-packages" / "seaweedq-0.1.0.dist-info"
    told.mkdir(parents=True)
    (told / "METADATA").write_text("Metadata-Version: 2.4\nName: seaweedq\nVersion: 0.1.0\n")
    if origin is not None:
        (told / "direct_url.json").write_text(json.dumps(origin))
    monkeypatch.syspath_prepend(told.parent)


@pytest.mark.parametrize(("told", "options"), [({"editable": True}, "-e "), ({}, "")])
def test_a_checkout_is_named(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: dict[str, bool], options: str
) -> None:
    installed(tmp_path, monkeypatch, {"url": checkout.as_uri(), "dir_info": told})
    monkeypatch.chdir(tmp_path)
    assert install_command("sql") == f"pip install {options}'{checkout}[sql]'"
    monkeypatch.chdir(checkout)
    assert install_command("sql") == f"pip install {options}'.[sql]'"
    with pytest.raises(MissingExtra, match="the demo needs the package nosuch: pip install"), needs("demo", "the demo"):
        import nosuch  # noqa: F401


@pytest.mark.parametrize(
    "origin",
    [
        None,
        {"url": "file:///gone/seaweedq", "dir_info": {"editable": True}},
        {"url": "file:///there/seaweedq-0.1.0-py3-none-any.whl", "archive_info": {}},
        {"url": "https://host/seaweedq.git", "vcs_info": {"vcs": "git", "commit_id": "00"}},
    ],
)
def test_what_came_from_elsewhere_is_named_as_the_index_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, origin: object
) -> None:
    installed(tmp_path, monkeypatch, origin)
    assert install_command("sql") == "pip install 'seaweedq[sql]'"
