"""The lists of the uploads of writes: objects of the store, since a record has no room for so many.

A list is put before the record that names it, and removed behind the record that does not name it any more. One that no
record names is swept: broker/cluster/periodic_tasks says when. Its id is of the form of an upload's, so that a deletion
of a topic takes no list of a later one.
"""

from collections.abc import Sequence

import msgspec

from seaweedq.broker.uploads import rules
from seaweedq.errors import InvalidImport
from seaweedq.formats import Format
from seaweedq.storage.interface import ObjectStore

FOLDER = "_writes/"
LISTS = Format("lists of writes", {1: 1})


class ListedUpload(msgspec.Struct, frozen=True, array_like=True):
    """A file of a write or an import; its size in bytes, SHA-256 and rows once they are known."""

    upload: str
    size: int = 0
    sha256: str = ""
    rows: int = 0


class _Versioned(msgspec.Struct, frozen=True):
    version: int


class WriteList(_Versioned, frozen=True):
    """The uploads of a writer's write, in their order."""

    writer: str
    number: int
    uploads: tuple[ListedUpload, ...]


_versioned, _list = msgspec.json.Decoder(_Versioned), msgspec.json.Decoder(WriteList)


async def put_list(
    store: ObjectStore, name: str, writer: str, number: int, uploads: Sequence[ListedUpload], level: int
) -> None:
    """Puts a list under a name that was drawn for it."""
    await store.create(name, msgspec.json.encode(WriteList(LISTS.at(level), writer, number, tuple(uploads))))


async def read_list(store: ObjectStore, name: str, writer: str, number: int) -> Sequence[ListedUpload]:
    """Returns the uploads of a list. Raises StoreUnavailable, NeedsNewerBroker, and InvalidImport for anything but the
    list of this write."""
    what = f"the list of write {number} of {writer!r}"
    try:
        data = await store.read(name)
        LISTS.check(_versioned.decode(data).version, what)
        found = _list.decode(data)
    except FileNotFoundError:
        raise InvalidImport(f"{what} is no longer in the store", reason="gone") from None
    except msgspec.DecodeError as error:
        raise InvalidImport(f"{what} cannot be read: {error}", reason="damaged") from None
    if (found.writer, found.number) != (writer, number) or not found.uploads:
        raise InvalidImport(f"{what} does not contain the uploads of this write", reason="damaged")
    return found.uploads


def list_name(topic: str, incarnation: int, now_us: int, nonce: str) -> str:
    """Returns the name of a new list."""
    return rules.object_name(topic, rules.upload_id(now_us, incarnation, nonce), FOLDER)
