"""A mirrored journal among real processes, for `make soak`: each place at which an owner, a mirror or a recovery may
die, and rolling restarts to an object journal and back. Its name is none that pytest finds by itself."""

from functools import partial
from pathlib import Path

import pytest

from tests.support.chaos.mirrored import (
    MIRROR,
    OWNER,
    RECOVERER,
    done_under_load,
    killed_at,
    rolled_to,
    stopped_past_its_lease,
)

pytestmark = [pytest.mark.process, pytest.mark.service, pytest.mark.long]


@pytest.mark.parametrize("places", [OWNER, MIRROR, RECOVERER], ids=["owner", "mirror", "recoverer"])
def test_killed_at_each_place(tmp_path: Path, places: tuple[str, ...]) -> None:
    found, answered = done_under_load(tmp_path, [partial(killed_at, place) for place in places])
    assert found == []
    assert answered > 100


def test_to_an_object_journal_and_back(tmp_path: Path) -> None:
    kinds = ("mirrored", "object", "mirrored")
    found, answered = done_under_load(tmp_path, [stopped_past_its_lease, *(partial(rolled_to, kind) for kind in kinds)])
    assert found == []
    assert answered > 100
