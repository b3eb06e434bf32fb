"""A broker that is killed at any step of taking a payload: nothing has the name, or all of it has."""

import asyncio
import hashlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from seaweedq.storage.local import LocalStore
from seaweedq.storage.spool import BUFFER_BYTES

pytestmark = pytest.mark.process

NAME = "_payloads/t/20260102/1"
SIZE = 2 * BUFFER_BYTES + 5
DATA = bytes(SIZE)
CRASH = """
import asyncio, os, signal, sys
from seaweedq.clock import SystemIds
from seaweedq.storage.local import LocalStore

root, name, size, call, last = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5])
real = getattr(os, call)

def killed(*arguments):
    global last
    last -= 1
    if last == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments)

async def chunks():
    setattr(os, call, killed)
    for start in range(0, size, 65536):
        yield bytes(min(65536, size - start))

asyncio.run(LocalStore(root, SystemIds()).receive(name, chunks(), size, None))
"""


async def all_of_it() -> AsyncIterator[bytes]:
    yield DATA


# After the link all is there, whether or not the broker lived to say so.
@pytest.mark.parametrize(
    ("call", "number", "there"),
    [("write", 1, False), ("write", 2, False), ("fsync", 1, False), ("link", 1, False), ("unlink", 1, True)],
)
async def test_killed_at_any_step_the_name_has_nothing_or_all(
    local: LocalStore, tmp_path: Path, call: str, number: int, there: bool
) -> None:
    await local.create("before", b"")
    arguments = [str(tmp_path / "store"), NAME, str(SIZE), call, str(number)]
    killed = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", CRASH, *arguments])
    assert killed.returncode == -9
    assert await local.list("") == ([NAME] if there else []) + ["before"]
    assert await local.sweep_temporary() == 1
    assert os.listdir(tmp_path / "store/_tmp") == []
    digest = hashlib.sha256(DATA).hexdigest()
    assert await local.receive(NAME, all_of_it(), SIZE, digest) == (None if there else digest)
    assert await local.read(NAME) == DATA
