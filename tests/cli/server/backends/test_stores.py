"""The stores that settings name, and the mistyped ones."""

from pathlib import Path

import pytest

from seaweedq.cli.server.backends import open_store
from seaweedq.clock import SystemIds
from seaweedq.errors import InvalidRequest
from seaweedq.settings import Settings


@pytest.mark.parametrize(
    ("store", "said"),
    [
        ("file://tmp/x", r"names the host 'tmp'; a folder has three slashes"),
        ("file://localhost/tmp/x", "names the host 'localhost'"),
        ("file:/tmp/x", "use file:///path or s3://bucket/prefix"),
        ("s4://bucket/x", "use file:///path or s3://bucket/prefix"),
    ],
)
def test_a_mistyped_store_is_refused(tmp_path: Path, store: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        open_store(Settings(data_dir=tmp_path, store=store), SystemIds())


def test_a_folder_is_a_path_or_a_url(tmp_path: Path) -> None:
    for store in (f"file://{tmp_path}/a", f"{tmp_path}/b"):
        open_store(Settings(data_dir=tmp_path, store=store), SystemIds())
