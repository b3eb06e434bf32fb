"""The backup of coordination in the store: the names and bytes of snapshots and administrative changes. Pure.

A *state* is all keys of coordination but leased ones and a few that nobody needs again, as of one revision. A
*snapshot* is a state as an object, `_coordination/{generation}/{number}`. An *administrative change* is the writes of
one transaction, `_coordination/{generation}/changes/{revision}`. Both copy values byte by byte, so later kinds of keys
need no code here.

An object is a header (magic, version and draft, CRC of all other bytes, MAC) and a body (msgpack): the members that its
name says too, the keys, compressed, and apart from them the *rights*: the keys of principals and tokens.

| its writer has | MAC | rights are | a reader that has the same believes them |
| --- | --- | --- | --- |
| a cluster_secret | of a key derived from it | encrypted by another one | if the MAC is of one of its secrets |
| none, and the store in the data folder | none | there as they are | if the object has no MAC |
| none, and another store | none | left out | never |

Damage is told by the CRC, before a MAC is compared. So an object whose MAC does not match is of another secret, or
forged: it is read, without rights, and is not *verified*.
"""

import hmac
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import msgspec

from seaweedq.coordination.keys import DENIALS, PRINCIPALS, TOKENS
from seaweedq.errors import Damaged
from seaweedq.formats import Format, check_draft, drafted, undrafted

BACKUPS = Format("backups of coordination", {1: 1})
BACKUPS_FOLDER = "_coordination/"
RIGHTS = (PRINCIPALS.prefix(), TOKENS.prefix(), DENIALS.prefix())
_SNAPSHOT, _CHANGE = 1, 2
_MAGIC = b"seaweedc"
_HEAD = struct.Struct("<8sIIB32s")  # magic, version and draft, CRC of all other bytes, whether there is a MAC, the MAC
_CRC_AT, _CRC_END = 12, 16
_NONCE_BYTES = 16
MAX_STATE_BYTES = 4 * 1024**3  # uncompressed; the body of a forged object may say anything


@dataclass(frozen=True, slots=True)
class State:
    """The keys of coordination as of a revision, or a snapshot of them: `number` is that of the snapshot, 0 for
    none. One that is not `verified` was read from an object of another secret, or of a forger, and has no rights."""

    generation: int
    number: int
    revision: int
    keys: Mapping[str, bytes]
    verified: bool = True

    def after(self, changes: Iterable["AdminChange"]) -> "State":
        """Returns the state with the changes of higher revisions, in their order."""
        keys, revision = dict(self.keys), self.revision
        for change in sorted(changes, key=lambda change: change.revision):
            if change.revision > revision:
                revision = change.revision
                for key, value in change.writes:
                    if value is None:
                        keys.pop(key, None)
                    else:
                        keys[key] = value
        return replace(self, revision=revision, keys=keys)


@dataclass(frozen=True, slots=True)
class AdminChange:
    """The writes of the transaction that made a revision, in the order of keys: the values, None for a deletion.
    `verified` as that of a state."""

    generation: int
    revision: int
    writes: tuple[tuple[str, bytes | None], ...]
    verified: bool = True


@dataclass(frozen=True, slots=True)
class SealKeys:
    """The keys that are derived from one secret: of the MAC, and of the encryption of rights."""

    mac: bytes = field(repr=False)
    cipher: bytes = field(repr=False)

    @staticmethod
    def from_root(derive: Callable[[bytes], bytes]) -> "SealKeys":
        """Returns the keys of a secret, whose root derives a key of 32 bytes from a label."""
        return SealKeys(derive(b"mac of backups"), derive(b"encryption of backups"))

    def sign(self, *parts: bytes | memoryview) -> bytes:
        """Returns the MAC of parts whose bounds nobody can move."""
        made = hmac.new(self.mac, digestmod="sha256")
        for part in parts:
            made.update(part)
        return made.digest()

    def encrypt(self, plain: bytes, name: str, nonce: bytes) -> bytes:
        """Returns a text of the object `name`, encrypted; no nonce may come twice."""
        text: bytes = nonce + self._aes().encrypt(nonce, plain, name.encode())
        return text

    def decrypt(self, text: bytes, name: str) -> bytes:
        """Returns the plain text of one that was encrypted by this key for the object `name`."""
        plain: bytes = self._aes().decrypt(text[:_NONCE_BYTES], text[_NONCE_BYTES:], name.encode())
        return plain

    def _aes(self) -> Any:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # of the server's packages; slow to import

        return AESGCM(self.cipher)


@dataclass(frozen=True, slots=True)
class Sealer:
    """Protects backups, and tells which of them give rights.

    `keys` are those of all secrets: the first one seals, all are accepted. `in_data_folder`: the store is in the data
    folder, whose files nobody else can write. `nonce` returns 32 random hexadecimal digits.
    """

    nonce: Callable[[], str]
    keys: tuple[SealKeys, ...] = ()
    in_data_folder: bool = False

    def keeps(self, key: str) -> bool:
        """Tells whether a backup has this key's value: without a secret, rights stay out of a store that others may
        read."""
        return bool(self.keys) or self.in_data_folder or not key.startswith(RIGHTS)

    def encrypt(self, plain: bytes, name: str) -> bytes:
        """Returns a text of the object `name` as only those can read it who have the secret, if there is one."""
        if not self.keys:
            return plain
        return self.keys[0].encrypt(plain, name, bytes.fromhex(self.nonce()))

    def find_keys(self, mac: bytes, *parts: bytes | memoryview) -> SealKeys | None:
        """Returns the keys whose MAC of the parts this is."""
        return next((keys for keys in self.keys if hmac.compare_digest(keys.sign(*parts), mac)), None)


def generation_folder(generation: int) -> str:
    """Returns the prefix of the names of a generation's backups."""
    return f"{BACKUPS_FOLDER}{generation:010d}/"


def generation_of(folder: str) -> int | None:
    """Returns the generation whose backups a folder has; None if it is no such folder."""
    digits = folder.removeprefix(BACKUPS_FOLDER).removesuffix("/")
    if not (digits.isascii() and digits.isdecimal()) or generation_folder(int(digits)) != folder:
        return None
    return int(digits)


def changes_folder(generation: int) -> str:
    """Returns the prefix of the names of a generation's administrative changes."""
    return f"{generation_folder(generation)}changes/"


def snapshot_name(generation: int, number: int) -> str:
    """Returns the object's name of a snapshot; names sort as numbers do."""
    return f"{generation_folder(generation)}{number:010d}"


def change_name(generation: int, revision: int) -> str:
    """Returns the object's name of an administrative change; names sort as revisions do, behind all snapshots."""
    return f"{changes_folder(generation)}{revision:020d}"


def snapshot_number(name: str, generation: int) -> int | None:
    """Returns the number in an object's name; None if that is no snapshot of the generation."""
    return _number(name, generation_folder(generation), snapshot_name, generation)


def change_revision(name: str, generation: int) -> int | None:
    """Returns the revision in an object's name; None if that is no administrative change of the generation."""
    return _number(name, changes_folder(generation), change_name, generation)


def encode_state(state: State, sealer: Sealer, level: int) -> bytes:
    """Returns the bytes of a snapshot at a level of the cluster. It takes a second for some 30 MB."""
    subject = _Subject(_SNAPSHOT, state.generation, state.number, state.revision)
    return _encode(subject, list(state.keys.items()), sealer, level)


def encode_change(change: AdminChange, sealer: Sealer, level: int) -> bytes:
    """Returns the bytes of an administrative change at a level of the cluster."""
    return _encode(_Subject(_CHANGE, change.generation, 0, change.revision), change.writes, sealer, level)


def decode_state(data: bytes, name: str, sealer: Sealer) -> State:
    """Returns the snapshot of that name. Raises Damaged, NeedsNewerBroker, LevelMismatch."""
    (_, generation, number, revision), content, verified = _decode(data, name, sealer)
    keys = {key: value for key, value in content if value is not None}
    return State(generation, number, revision, keys, verified)


def decode_change(data: bytes, name: str, sealer: Sealer) -> AdminChange:
    """Returns the administrative change of that name. Raises Damaged, NeedsNewerBroker, LevelMismatch."""
    (_, generation, _, revision), content, verified = _decode(data, name, sealer)
    return AdminChange(generation, revision, tuple(content), verified)


class _Subject(NamedTuple):
    """The kind of a backup, and the numbers by which it is known: that of a snapshot, or the revision of a change, is
    in its name."""

    kind: int
    generation: int
    number: int
    revision: int

    @property
    def name(self) -> str:
        if self.kind == _SNAPSHOT:
            return snapshot_name(self.generation, self.number)
        return change_name(self.generation, self.revision)


class _Body(NamedTuple):
    """`open` and `rights` are compressed, of so many bytes before; `rights` may be encrypted."""

    subject: _Subject
    open_bytes: int
    open: bytes
    rights_bytes: int
    rights: bytes


_Content = list[tuple[str, bytes | None]]
_BODY, _CONTENT = msgspec.msgpack.Decoder(_Body), msgspec.msgpack.Decoder(_Content)


def _number(name: str, folder: str, named: Callable[[int, int], str], generation: int) -> int | None:
    digits = name.removeprefix(folder)
    if not (digits.isascii() and digits.isdecimal()) or named(generation, int(digits)) != name:
        return None
    return int(digits)


def _encode(subject: _Subject, content: Sequence[tuple[str, bytes | None]], sealer: Sealer, level: int) -> bytes:
    kept = sorted(one for one in content if sealer.keeps(one[0]))
    opened = msgspec.msgpack.encode([one for one in kept if not one[0].startswith(RIGHTS)])
    rights = msgspec.msgpack.encode([one for one in kept if one[0].startswith(RIGHTS)])
    packed = sealer.encrypt(zlib.compress(rights), subject.name)
    body = msgspec.msgpack.encode(_Body(subject, len(opened), zlib.compress(opened), len(rights), packed))
    stamped = drafted(BACKUPS.at(level))
    mac = sealer.keys[0].sign(_signed(stamped, subject.name), body) if sealer.keys else b""
    head = _HEAD.pack(_MAGIC, stamped, 0, bool(mac), mac)
    return head[:_CRC_AT] + _checksum(head, body).to_bytes(4, "little") + head[_CRC_END:] + body


def _decode(data: bytes, name: str, sealer: Sealer) -> tuple[_Subject, _Content, bool]:
    """Returns the subject, the content in the order of keys, and whether it is verified."""
    view = memoryview(data)
    head, rest = view[: _HEAD.size], view[_HEAD.size :]
    if len(head) < _HEAD.size or bytes(head[: len(_MAGIC)]) != _MAGIC:
        raise _damaged(name, "the object does not begin with the header of a backup of coordination")
    _, stamped, crc, has_mac, mac = _HEAD.unpack(head)
    if _checksum(head, rest) != crc:
        raise _damaged(name, "the backup contains different bytes than the broker had written")
    version, draft = undrafted(stamped)
    check_draft(draft, f"the backup {name}")
    BACKUPS.check(version, name)
    keys = sealer.find_keys(mac, _signed(stamped, name), rest) if has_mac else None
    verified = keys is not None if sealer.keys else not has_mac
    try:
        body = _BODY.decode(rest)
        content = _inflated(body.open, body.open_bytes)
        if verified and (keys or sealer.in_data_folder):
            rights = keys.decrypt(body.rights, name) if keys else body.rights
            content += _inflated(rights, body.rights_bytes)
    except (msgspec.DecodeError, zlib.error, ValueError) as error:
        raise _damaged(name, f"the backup cannot be read: {error}") from error
    if body.subject.name != name:
        raise _damaged(name, f"the backup's content belongs to another backup, {body.subject.name}")
    return body.subject, sorted(content), verified


def _inflated(packed: bytes, size: int) -> _Content:
    if not 0 <= size <= MAX_STATE_BYTES:
        raise ValueError(
            f"the backup states that its keys and values have {size} bytes in total; the limit is "
            f"{MAX_STATE_BYTES} bytes"
        )
    return _CONTENT.decode(zlib.decompressobj().decompress(packed, size))  # never more, whatever it holds


def _signed(stamped: int, name: str) -> bytes:
    """Returns what a MAC covers beside the body: the bytes in its place would make a backup of another version, or of
    another name."""
    return _MAGIC + stamped.to_bytes(4, "little") + len(name).to_bytes(4, "little") + name.encode()


def _checksum(head: bytes | memoryview, body: bytes | memoryview) -> int:
    """Returns the CRC of an object but for the four bytes of the CRC itself."""
    return zlib.crc32(body, zlib.crc32(head[_CRC_END:], zlib.crc32(head[:_CRC_AT])))


def _damaged(name: str, what: str) -> Damaged:
    return Damaged(f"{name}: {what}", name=name)
