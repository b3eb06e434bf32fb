"""The folder lock: one holder, named to others, gone with it, not inherited by programs it starts."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from seaweedq.errors import DataFolderInUse
from seaweedq.journal.disk import Disk
from seaweedq.journal.home_folder import LOCK_FILE, FolderLock


def test_a_second_lock_is_refused_and_names_path_and_process(tmp_path: Path) -> None:
    held = FolderLock(tmp_path / "new" / "folder", Disk())
    held.acquire()
    with pytest.raises(DataFolderInUse, match=f"process {os.getpid()}") as caught:
        FolderLock(held.folder, Disk()).acquire()
    assert caught.value.fields == {"path": str(held.folder), "pid": os.getpid()}
    held.release()


def test_a_released_lock_can_be_taken_again(tmp_path: Path) -> None:
    first, second = FolderLock(tmp_path, Disk()), FolderLock(tmp_path, Disk())
    first.acquire()
    first.release()
    first.release()
    second.acquire()
    with pytest.raises(DataFolderInUse):
        first.acquire()
    second.release()
    first.acquire()
    first.release()


def test_who_waits_gets_a_lock_that_is_released_meanwhile(tmp_path: Path) -> None:
    held, late = FolderLock(tmp_path, Disk()), FolderLock(tmp_path, Disk())
    held.acquire()
    waiting = threading.Thread(target=late.acquire, args=(60,))
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    held.release()
    waiting.join(30)
    assert not waiting.is_alive()
    with pytest.raises(DataFolderInUse):
        held.acquire()
    late.release()


def test_who_waits_in_vain_is_told_the_holder_and_holds_no_file_open(tmp_path: Path) -> None:
    held = FolderLock(tmp_path, Disk())
    held.acquire()
    before, began = files_below(tmp_path), time.monotonic()
    with pytest.raises(DataFolderInUse, match=f"process {os.getpid()}"):
        FolderLock(tmp_path, Disk()).acquire(wait_s=0.3)
    assert time.monotonic() - began >= 0.3
    assert files_below(tmp_path) == before
    held.release()


def files_below(folder: Path) -> list[str]:
    """Files that this process has open; other tests' threads open and close some, too."""
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    paths = [os.readlink(link) for link in links if os.path.lexists(link)]
    return sorted(path for path in paths if path.startswith(str(folder)))


def test_an_unreadable_process_id_is_no_reason_to_fail_otherwise(tmp_path: Path) -> None:
    held = FolderLock(tmp_path, Disk())
    held.acquire()
    (tmp_path / LOCK_FILE).write_bytes(b"\xff?")
    with pytest.raises(DataFolderInUse, match="process unknown") as caught:
        FolderLock(tmp_path, Disk()).acquire()
    assert caught.value.fields["pid"] is None
    held.release()


@pytest.mark.process
def test_a_program_started_meanwhile_does_not_hold_the_lock_on(tmp_path: Path) -> None:
    held = FolderLock(tmp_path, Disk())
    held.acquire()
    code = "print('up', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, close_fds=False
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        held.release()
        again = FolderLock(tmp_path, Disk())
        again.acquire()
        again.release()
        child.communicate(b"\n")
