"""The bytes of snapshots and administrative changes: what was written is read; damage, other versions and other names
are told; rights are read by those alone who have the secret."""

import zlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seaweedq import levels
from seaweedq.coordination import backup
from seaweedq.coordination.backup import (
    AdminChange,
    Sealer,
    State,
    change_name,
    change_revision,
    decode_change,
    decode_state,
    encode_change,
    encode_state,
    snapshot_name,
    snapshot_number,
)
from seaweedq.errors import Damaged, LevelMismatch, NeedsNewerBroker
from seaweedq.formats import Format
from tests.support.brokers.sealers import BARE, OWN_FOLDER, SEALED, sealer

KEYS = {
    "cluster": b"{}",
    "principals/ann": b'{"grants":"secret of ann"}',
    "segments/a/0000000001/0000000000": b"\x00 any bytes \xff",
    "tokens/t1": b'{"digest":"secret of t1"}',
}
OPEN = {key: value for key, value in KEYS.items() if not key.startswith(("principals/", "tokens/"))}
STATE = State(3, 12, 4_567, KEYS)
CHANGE = AdminChange(3, 4_568, (*KEYS.items(), ("topics/gone", None)))
NAME, CHANGE_NAME = snapshot_name(3, 12), change_name(3, 4_568)


SEALERS = pytest.mark.parametrize("kept", [BARE, OWN_FOLDER, SEALED], ids=["bare", "data folder", "secret"])


def snapshot(kept: Sealer = SEALED, state: State = STATE) -> bytes:
    return encode_state(state, kept, levels.LOWEST)


def with_crc(data: bytes) -> bytes:
    """The bytes with the CRC that a writer of them would give."""
    return data[:12] + zlib.crc32(data[16:], zlib.crc32(data[:12])).to_bytes(4, "little") + data[16:]


@given(
    generation=st.integers(1, 10**10 - 1),
    number=st.integers(1, 10**10 - 1),
    revision=st.integers(1, 2**63 - 1),
    keys=st.dictionaries(st.text(), st.binary(), max_size=5),
)
def test_a_snapshot_is_read_as_it_was_written(
    generation: int, number: int, revision: int, keys: dict[str, bytes]
) -> None:
    state = State(generation, number, revision, keys | KEYS)
    for kept in (SEALED, OWN_FOLDER):
        assert decode_state(snapshot(kept, state), snapshot_name(generation, number), kept) == state


@SEALERS
def test_a_change_is_read_as_it_was_written(kept: Sealer) -> None:
    data = encode_change(CHANGE, kept, levels.LOWEST)
    writes = tuple(write for write in sorted(CHANGE.writes) if kept.keeps(write[0]))
    assert decode_change(data, CHANGE_NAME, kept) == replace(CHANGE, writes=writes)


def test_names_sort_as_their_numbers() -> None:
    names = [snapshot_name(3, 2), snapshot_name(3, 10), change_name(3, 9), change_name(3, 2**62), snapshot_name(4, 1)]
    assert names == sorted(names)
    assert snapshot_number(names[1], 3) == 10
    assert change_revision(names[3], 3) == 2**62
    for strange in (names[2], names[4], names[0] + "x", "_coordination/0000000003/7", "_coordination/0000000003/"):
        assert snapshot_number(strange, 3) is None
    for strange in (names[0], names[3][:-1], change_name(4, 9)):
        assert change_revision(strange, 3) is None


def test_changes_of_higher_revisions_are_added_in_their_order() -> None:
    def change(revision: int, *writes: tuple[str, bytes | None]) -> AdminChange:
        return AdminChange(3, revision, writes)

    state = State(3, 1, 10, {"a": b"1", "b": b"1"})
    later = [change(12, ("a", b"3"), ("b", None)), change(11, ("a", b"2"), ("c", b"2")), change(10, ("a", b"old"))]
    assert state.after(later) == State(3, 1, 12, {"a": b"3", "c": b"2"})
    assert state.after([]) == state


@SEALERS
def test_each_changed_byte_is_damage(kept: Sealer) -> None:
    data = snapshot(kept)
    for at in range(len(data)):
        broken = bytearray(data)
        broken[at] ^= 1
        with pytest.raises(Damaged, match=NAME):
            decode_state(bytes(broken), NAME, kept)
    for length in (0, 7, 40, len(data) - 1):
        with pytest.raises(Damaged, match=NAME):
            decode_state(data[:length], NAME, kept)


def test_a_snapshot_of_another_name_or_kind_is_damage() -> None:
    for kept in (BARE, SEALED):
        with pytest.raises(Damaged, match=f"belongs to another backup, {NAME}"):
            decode_state(snapshot(kept), snapshot_name(3, 13), kept)
        with pytest.raises(Damaged, match=f"belongs to another backup, {NAME}"):
            decode_change(snapshot(kept), CHANGE_NAME, kept)


def test_a_later_version_needs_a_newer_broker(monkeypatch: pytest.MonkeyPatch, next_level: int) -> None:
    with monkeypatch.context() as later:
        later.setattr(backup, "BACKUPS", Format("backups of coordination", {1: 1, next_level: 2}))
        data = encode_state(STATE, SEALED, next_level)
        assert decode_state(data, NAME, SEALED) == decode_state(snapshot(), NAME, SEALED) == STATE
    with pytest.raises(NeedsNewerBroker, match=f"^{NAME} is in version 2 of the format of backups of coordination"):
        decode_state(data, NAME, SEALED)


@pytest.mark.parametrize("draft", [0, levels.DRAFT + 1])
def test_a_backup_of_another_draft_is_refused(draft: int) -> None:
    data = bytearray(snapshot())
    data[10:12] = draft.to_bytes(2, "little")
    with pytest.raises(LevelMismatch, match=f"^the backup {NAME} was written "):
        decode_state(with_crc(bytes(data)), NAME, SEALED)


def test_rights_are_read_by_those_alone_who_have_the_secret() -> None:
    data = snapshot()
    for stranger in (BARE, OWN_FOLDER, sealer("two")):
        assert decode_state(data, NAME, stranger) == replace(STATE, keys=OPEN, verified=False)


def test_rights_are_encrypted(monkeypatch: pytest.MonkeyPatch) -> None:
    compress = zlib.compress
    monkeypatch.setattr(zlib, "compress", lambda data: compress(data, 0))  # so that the text can be seen
    assert b"secret of ann" in snapshot(OWN_FOLDER)
    data = snapshot()
    assert b"any bytes" in data
    assert b"secret of" not in data
    assert b"principals/ann" not in data


def test_each_of_several_secrets_is_accepted_and_the_first_one_seals() -> None:
    both = sealer("new", "one")
    assert decode_state(snapshot(), NAME, both) == STATE
    assert decode_state(snapshot(both), NAME, sealer("new")) == STATE
    assert not decode_state(snapshot(both), NAME, SEALED).verified


def test_what_is_forged_gives_no_rights() -> None:
    plain = snapshot(OWN_FOLDER)
    assert decode_state(plain, NAME, OWN_FOLDER) == STATE
    assert decode_state(plain, NAME, SEALED) == replace(STATE, keys=OPEN, verified=False)
    claimed = with_crc(plain[:16] + b"\x01" + b"m" * 32 + plain[49:])  # says that it has a MAC
    assert decode_state(claimed, NAME, SEALED) == replace(STATE, keys=OPEN, verified=False)
    stripped = with_crc(snapshot()[:16] + b"\x00" * 33 + snapshot()[49:])
    assert decode_state(stripped, NAME, SEALED) == replace(STATE, keys=OPEN, verified=False)


def test_a_forged_backup_gives_no_rights_in_a_data_folder() -> None:
    both = sealer("one", in_data_folder=True)
    assert decode_state(snapshot(OWN_FOLDER), NAME, both) == replace(STATE, keys=OPEN, verified=False)
    assert decode_state(snapshot(both), NAME, both) == STATE


def test_without_a_secret_rights_stay_out_of_a_store_of_others() -> None:
    data = snapshot(BARE)
    assert decode_state(data, NAME, BARE) == replace(STATE, keys=OPEN)
    assert decode_state(data, NAME, OWN_FOLDER) == replace(STATE, keys=OPEN)
    assert decode_state(snapshot(OWN_FOLDER), NAME, BARE) == replace(STATE, keys=OPEN)
    assert len(data) < len(snapshot(OWN_FOLDER))


def test_a_forged_size_is_damage_and_fills_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup, "MAX_STATE_BYTES", 10)
    with pytest.raises(Damaged, match="states that its keys and values have"):
        decode_state(snapshot(), NAME, SEALED)


def test_the_same_state_is_never_encrypted_twice_alike() -> None:
    kept = sealer("one")
    assert snapshot(kept) != snapshot(kept)
