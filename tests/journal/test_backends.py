"""Kinds of journals together: who writes what, who reaches what, and that a journal out of reach is never empty."""

import tomllib
from pathlib import Path

import pytest

import seaweedq.journal
from seaweedq.cli.server.journals import journal_setup
from seaweedq.clock import SystemClock, SystemIds
from seaweedq.coordination.records import JournalRecord
from seaweedq.errors import NeedsNewerBroker
from seaweedq.journal.file_journal import FileJournal
from seaweedq.journal.interface import DeadJournal, Journals, JournalUnreachable, seen_nothing
from seaweedq.journal.object_journal import ObjectJournal
from seaweedq.settings import Settings
from seaweedq.storage.memory import MemoryStore
from tests.support.journal.mirrors import MemoryMirrors
from tests.support.levels import newest
from tests.support.paths import ROOT

OWN_MODULES = ("backends", "file_", "object_", "memory_")


def opened(folder: Path, kind: str) -> Journals:
    setup = journal_setup(Settings(data_dir=folder, journal=kind), SystemClock(), SystemIds(), {})
    setup.home.lock()
    return setup.open(MemoryStore(), newest, seen_nothing, MemoryMirrors())


async def refused(dead: DeadJournal) -> str:
    """Why it cannot be reached; nothing else can be had of it."""
    with pytest.raises(JournalUnreachable) as caught:
        await dead.fence()
    await dead.close()
    return str(caught.value)


@pytest.mark.parametrize(("kind", "made", "path"), [("file", FileJournal, True), ("object", ObjectJournal, False)])
async def test_a_broker_writes_the_kind_that_its_settings_name(
    tmp_path: Path, kind: str, made: type, path: bool
) -> None:
    journals = opened(tmp_path, kind)
    record = journals.describe("b")
    assert (record.kind, record.path, record.recovered) == (kind, str(tmp_path) if path else "", False)
    assert journals.is_exclusive(record) is (kind == "file")
    journal = journals.create("b")
    assert isinstance(journal, made)
    await journal.close()


async def test_a_kind_that_nobody_here_knows_needs_a_newer_broker(tmp_path: Path) -> None:
    journals = opened(tmp_path, "file")
    record = JournalRecord("quorum", "somewhere")
    assert not journals.is_exclusive(record)
    dead = journals.open_dead("b", record)
    with pytest.raises(NeedsNewerBroker, match="'quorum', which this broker does not know; a newer broker is needed"):
        await dead.fence()
    await dead.close()


@pytest.mark.parametrize("there", ["nothing", "a folder without an id", "another folder"])
async def test_a_file_journal_elsewhere_is_out_of_reach(tmp_path: Path, there: str) -> None:
    journals = opened(tmp_path / "own", "file")
    other = tmp_path / "other"
    if there != "nothing":
        other.mkdir()
    if there == "another folder":
        (other / "folder-id").write_text("one")
    before = list(other.iterdir()) if other.exists() else None
    why = await refused(journals.open_dead("b", JournalRecord("file", "the one that is meant", str(other))))
    assert "the journal is in a folder that this broker cannot reach, or on another machine" in why
    assert (list(other.iterdir()) if other.exists() else None) == before, "not even locked"


async def test_a_file_journal_of_a_living_process_is_out_of_reach(tmp_path: Path) -> None:
    living, journals = opened(tmp_path / "living", "file"), opened(tmp_path / "own", "object")
    assert "is in use by process" in await refused(journals.open_dead("b", living.describe("b")))


def test_the_contract_on_imports_names_every_module_of_a_kind() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [contract] = [each for each in contracts if each["name"] == "only cli chooses journals"]
    [folder] = seaweedq.journal.__path__
    stems = {path.stem for path in Path(folder).glob("*.py")}
    of_kinds = {f"seaweedq.journal.{stem}" for stem in stems if stem.startswith(OWN_MODULES)}
    assert set(contract["forbidden_modules"]) == of_kinds
