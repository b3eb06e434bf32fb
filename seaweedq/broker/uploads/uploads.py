"""Uploads: payloads that go to the store before a message names them. docs/internals/by-reference.md has states and
protocol.

Order of writes: the record, then the bytes, then the record says `published` (or `imported`), then the row. To end an
upload, the record says `removed`, then the bytes go. Every change compares the record's revision, and `removed` is
final: a publish and a removal cannot both succeed, on any brokers, and at whatever moment either of them dies.

The size and SHA-256 of an uploaded object are checked against those announced; the object is read once if the store
cannot tell its digest. A reading continues when its caller goes away, and all callers meanwhile wait for the same one:
a repeated publish need not begin anew.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from datetime import UTC, datetime

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from seaweedq.access.rights import NEVER_US
from seaweedq.broker.context import Context
from seaweedq.broker.read.reading import Reading
from seaweedq.broker.rpc.peer_keyring import PeerKeyring
from seaweedq.broker.service import Service
from seaweedq.broker.topics.catalog import Topic
from seaweedq.broker.uploads import rules
from seaweedq.broker.uploads.broker_urls import BrokerUrls, LinkKeys
from seaweedq.broker.uploads.payloads import Payloads, read_pieces
from seaweedq.broker.uploads.records import AT_ONCE, OpenQuota, UploadRecords, clear, clear_folder, not_found
from seaweedq.checks import reach
from seaweedq.clock import Clock, Ids
from seaweedq.concurrency.futures import gather_bounded
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Entry
from seaweedq.coordination.records import TopicConfig, UploadRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import (
    InvalidUpload,
    UploadConflict,
    UploadExpired,
    UploadIncomplete,
    UploadMismatch,
    UploadNotFound,
)
from seaweedq.segments.rows import Reference
from seaweedq.settings import Settings
from seaweedq.storage.interface import Part, PayloadStore, SignedRequest

CHECK_PIECE_BYTES = 4 * 1024 * 1024  # that are read at a time
READINGS = 2  # concurrent ones: each holds three chunks, and hashes on a core


class Uploads:
    """The uploads of all topics, from any broker."""

    def __init__(
        self,
        records: UploadRecords,
        own_urls: BrokerUrls,
        store: PayloadStore,
        clock: Clock,
        ids: Ids,
        settings: Settings,
    ) -> None:
        self._records = records
        self._store = store
        self._clock = clock
        self._ids = ids
        self._settings = settings
        self._check = DigestCheck(store)
        self._open = OpenQuota(records, clock, settings.max_open_uploads, of_writes=False)
        self._of_writes = OpenQuota(records, clock, settings.max_write_uploads, of_writes=True)
        self.own_urls = own_urls
        self.close = self._check.close

    async def create(
        self,
        topic: Topic,
        size: int,
        content_type: str,
        sha256: str | None,
        multipart: bool | None,
        write: str | UnsetType = UNSET,
    ) -> tuple[str, UploadRecord]:
        """Begins an upload of `size` bytes, for messages or for a `write`. Returns its id, and its record.

        Raises PayloadTooLarge, TooManyUploads, TopicBeingDeleted, and InvalidRequest if the store has no parts.
        """
        part_bytes = self.check_new(size, multipart, topic.record.config)
        now_us = self._clock.now_us()
        upload = rules.upload_id(now_us, topic.record.incarnation, self._ids.nonce())
        name = rules.object_name(topic.name, upload)
        async with self._quota(write).place(topic):
            parts = await self._store.begin_parts(name, content_type) if part_bytes else None
            reach("upload.begun")
            expires_us = now_us + self._settings.upload_expires_s * 1_000_000
            record = UploadRecord(
                name, size, content_type, sha256, now_us, expires_us, parts=parts, part_bytes=part_bytes, write=write
            )
            await self._records.write(topic, upload, record)
        reach("upload.recorded")
        return upload, record

    def check_new(self, size: int, multipart: bool | None, config: TopicConfig) -> int | None:
        """Checks whether a topic of that configuration can have such an upload. Returns the bytes of its parts, None
        if it comes as a whole. Raises PayloadTooLarge, InvalidRequest."""
        rules.check_size(size, config, self._settings)
        return rules.part_bytes(size, multipart, self._store.presigns, self._settings)

    async def find(self, topic: Topic, upload: str) -> Versioned[UploadRecord]:
        """Returns an upload of this very topic, with its revision. Raises UploadNotFound, also for a removed one."""
        found = await self._records.require(topic, upload)
        if found.record.state == "removed":
            raise not_found(topic, upload)
        return found

    async def check_user(self, topic: Topic, upload: str, write: str) -> None:
        """Checks that an upload may be a part of this write. Raises UploadNotFound, UploadExpired, UploadConflict."""
        record = (await self.find(topic, upload)).record
        rules.check_user(upload, record, write)
        self._check_time(upload, record)

    async def signed(
        self, topic: Topic, upload: str, record: UploadRecord | None = None, until_us: int = NEVER_US
    ) -> SignedRequest:
        """Returns the URL for an open upload's bytes as a whole, which ends by `until_us`. Raises UploadNotFound,
        UploadExpired, and UploadConflict for one that was published or comes in parts."""
        record = record or (await self.find(topic, upload)).record
        expires_s = self._url_seconds(upload, record, until_us)
        if record.parts is not None:
            raise UploadConflict(
                "this upload has parts: request a URL for each part, and PUT each part to its URL", upload_id=upload
            )
        if not self._store.presigns:
            return await self.own_urls.put(record.name, record.content_type, expires_s)
        return await self._store.presign_put(record.name, expires_s, record.size, record.content_type, record.sha256)

    async def signed_part(
        self, topic: Topic, upload: str, number: int, record: UploadRecord | None = None, until_us: int = NEVER_US
    ) -> SignedRequest:
        """Returns the URL for a part. Raises as `signed`, and InvalidRequest for a part that does not exist."""
        record = record or (await self.find(topic, upload)).record
        size, expires_s = rules.part_size(record, number), self._url_seconds(upload, record, until_us)
        assert record.parts is not None
        return await self._store.presign_part(record.name, record.parts, number, expires_s, size)

    async def link(self, topic: Topic, name: str, lasts_s: int) -> str:
        """Returns a URL where readers get a payload of a topic, by its object's name, for `upload_url_s` seconds, and
        `lasts_s` at most."""
        expires_s = min(self._settings.upload_url_s, lasts_s)
        if self._store.presigns:
            return (await self._store.presign_get(name, expires_s)).url
        return (await self.own_urls.get(name, expires_s)).url

    async def receive(self, topic: Topic, upload: str, chunks: AsyncIterator[bytes]) -> UploadRecord:
        """Receives the bytes of an upload, at a store that gives no URLs. The same bytes once more are no error.

        Raises the errors of `chunks`, UploadNotFound, UploadExpired, UploadMismatch, and UploadConflict if other bytes
        are there.
        """
        record = (await self.find(topic, upload)).record
        self._check_time(upload, record)
        if record.checked is None and not await self._is_there(record):
            try:
                digest = await self._store.receive(record.name, chunks, record.size, record.sha256)
            except InvalidUpload as error:
                raise UploadMismatch(error.detail, upload_id=upload, **error.fields) from None
            reach("upload.stored")
            digest = digest or record.sha256
            if digest is None:
                raise UploadConflict(
                    "another PUT of this upload finished first; send the request again", upload_id=upload
                )
            return await self._record_digest(topic, upload, digest)
        if record.checked is None:  # an earlier put was cut off at its end
            record = await self._record_digest(topic, upload, await self._check.digest(upload, record))
        hashed = hashlib.sha256()
        async for chunk in chunks:
            await asyncio.to_thread(hashed.update, chunk)
        if hashed.hexdigest() != record.checked:
            raise UploadConflict("the upload was already completed with other bytes", upload_id=upload)
        return record

    async def parts(self, topic: Topic, upload: str, record: UploadRecord | None = None) -> list[Part]:
        """Returns the parts that the store has, which does not mean that it would take more: the record alone says
        whether the upload is open. Raises UploadNotFound, UploadConflict for an upload that comes as a whole."""
        record = record or (await self.find(topic, upload)).record
        rules.part_count(record)
        assert record.parts is not None
        try:
            return await self._store.list_parts(record.name, record.parts)
        except FileNotFoundError:  # the parts have become the object
            return []

    async def complete(self, topic: Topic, upload: str) -> UploadRecord:
        """Checks that an upload's bytes are there, and are those that were announced; parts become the object first.
        The result is kept: a publish need not check again. Repeatable.

        Raises UploadNotFound, UploadExpired, UploadIncomplete, UploadMismatch.
        """
        record = (await self.find(topic, upload)).record
        if record.state != "open":
            return record
        self._check_time(upload, record)
        if record.parts is not None and not await self._is_there(record):
            await self._join(topic, upload, record, record.parts)
        digest = await self._check.digest(upload, record)
        record = await self._record_digest(topic, upload, digest)
        check_digest(upload, record, digest)
        return record

    async def abort(self, topic: Topic, upload: str) -> None:
        """Ends an upload; one that is removed already is no error. Raises UploadNotFound, and UploadConflict if a
        message may name it, or a write read it."""
        found = await self._records.require(topic, upload)
        removed = await self._records.change(topic, upload, rules.as_removed, found, self._records.unread)
        if found.record.state == "open":
            self._quota(found.record.write).ended(topic)
        reach("upload.removed")
        await clear(self._store, removed.record)
        reach("upload.cleared")
        await self._records.change(topic, upload, lambda now: replace(now, cleared=True), removed)

    async def claim(
        self, topic: Topic, upload: str, use: rules.Use = "published", write: str | UnsetType = UNSET
    ) -> Reference:
        """Publishes an upload: from now on its object stays as long as its topic. Any number of messages may name it
        until it expires. An upload that is only imported is removed once it has expired and its import is over.

        Raises UploadNotFound, UploadExpired, UploadIncomplete, UploadMismatch, and UploadConflict if it was begun for
        another use than this `write`: for another write, for messages, or for a write where this is none.
        """
        found = await self.find(topic, upload)
        record = found.record
        rules.check_user(upload, record, write)
        self._check_time(upload, record)
        if record.state not in (use, "published") or record.checked is None:  # a rebuild has read no object
            digest = await self._check.digest(upload, record)
            if record.sha256 not in (None, digest):  # noted too: objects do not change, so it is not read again
                await self._record_digest(topic, upload, digest)
            check_digest(upload, record, digest)
            self._check_time(upload, record)
            reach("claim.checked")
            was = record.state

            def claimed(now: UploadRecord) -> UploadRecord:
                if now.state == "removed":
                    raise not_found(topic, upload)
                return rules.as_claimed(now, digest, use)

            record = (await self._records.change(topic, upload, claimed, found)).record
            if was == "open":
                self._quota(write).ended(topic)
            reach("claim.published")
        assert record.checked is not None
        return Reference(self._store.uri(record.name), record.size, record.content_type, record.checked)

    async def remove_topic(self, topic: Topic) -> None:
        """Removes all uploads and payloads of a topic that is being deleted, and none of a later topic of the same
        name. Repeatable."""

        async def end(entry: Entry) -> None:
            reach("delete.uploads")
            upload = keys.UPLOADS.parse(entry.key)[2]
            await self._records.change(topic, upload, rules.as_dead, keys.UPLOADS.require(entry))

        async for page in self._records.pages(topic):
            await gather_bounded(AT_ONCE, end, page.entries)
        reach("delete.payloads")
        await clear_folder(self._store, topic.name, topic.record.incarnation + 1)

    def _quota(self, write: str | UnsetType) -> OpenQuota:
        return self._open if write is UNSET else self._of_writes

    async def _record_digest(self, topic: Topic, upload: str, digest: str) -> UploadRecord:
        """Records the object's digest. An object that came after its upload was removed is deleted again."""

        def checked(now: UploadRecord) -> UploadRecord:
            if now.state == "removed":
                raise not_found(topic, upload)
            return replace(now, checked=digest)

        try:
            return (await self._records.change(topic, upload, checked)).record
        except UploadNotFound:
            record = (await self._records.require(topic, upload)).record
            if record.state == "removed":
                await clear(self._store, record)
            raise

    async def _join(self, topic: Topic, upload: str, record: UploadRecord, parts: str) -> None:
        found = await self.parts(topic, upload, record)
        missing = rules.missing_parts(record, found)
        if not missing:
            with suppress(FileNotFoundError):  # the parts are gone: into the object, or with the upload
                await self._store.end_parts(record.name, parts, found)
        elif not await self._is_there(record):  # another request has not just made the object either
            detail = (
                f"{len(missing)} of {rules.part_count(record)} parts are missing, or their sizes "
                "differ from the announced sizes"
            )
            raise UploadIncomplete(detail, upload_id=upload, missing=missing[: rules.NAMED])
        reach("upload.joined")

    async def _is_there(self, record: UploadRecord) -> bool:
        try:
            await self._store.size(record.name)
        except FileNotFoundError:
            return False
        return True

    def _check_time(self, upload: str, record: UploadRecord) -> None:
        if self._clock.now_us() >= record.expires_us:
            moment = datetime.fromtimestamp(record.expires_us / 1e6, UTC).isoformat().replace("+00:00", "Z")
            raise UploadExpired(
                f"the upload expired at {moment}; create another upload", upload_id=upload, expires_at=moment
            )

    def _url_seconds(self, upload: str, record: UploadRecord, until_us: int) -> int:
        """Returns how long a URL lasts: at least a second, since no store signs for less."""
        if record.state != "open":
            raise UploadConflict(f"the upload is {record.state}, so it accepts no more bytes", upload_id=upload)
        self._check_time(upload, record)
        now_us = self._clock.now_us()
        return max(1, min(rules.url_seconds(record, now_us, self._settings), (until_us - now_us) // 1_000_000))


class DigestCheck:
    """Checks the objects of one store."""

    def __init__(self, store: PayloadStore) -> None:
        self._store = store
        self._readings: dict[str, asyncio.Task[str]] = {}
        self._places = asyncio.Semaphore(READINGS)

    async def digest(self, upload: str, record: UploadRecord) -> str:
        """Returns the SHA-256 of an upload's object, which has the announced size. Raises UploadIncomplete,
        UploadMismatch, StoreUnavailable."""
        try:
            size, known = await self._store.digest(record.name)
            if size != record.size:
                detail = f"the upload was announced with {record.size} bytes, but has {size}"
                raise UploadMismatch(detail, upload_id=upload, field="size", value=size, bound=record.size)
            return record.checked or known or await self._read(record)
        except FileNotFoundError:
            raise UploadIncomplete(
                "the upload's bytes are not in the store; upload them, then complete the upload", upload_id=upload
            ) from None

    async def close(self) -> None:
        """Cancels the readings."""
        readings = list(self._readings.values())
        for reading in readings:
            reading.cancel()
        await asyncio.gather(*readings, return_exceptions=True)

    async def _read(self, record: UploadRecord) -> str:
        reading = self._readings.get(record.name)
        if reading is None:
            reading = asyncio.create_task(self._hash(record), name=f"check of {record.name}")
            self._readings[record.name] = reading

            def end(ended: asyncio.Task[str]) -> None:
                del self._readings[record.name]
                if not ended.cancelled():
                    ended.exception()  # seen, also if nobody waits any more

            reading.add_done_callback(end)
        return await asyncio.shield(reading)

    async def _hash(self, record: UploadRecord) -> str:
        hashed = hashlib.sha256()
        async with (
            self._places,
            aclosing(read_pieces(self._store, record.name, 0, record.size, CHECK_PIECE_BYTES)) as found,
        ):
            async for piece in found:
                await asyncio.to_thread(hashed.update, piece)
        return hashed.hexdigest()


def check_digest(upload: str, record: UploadRecord, digest: str) -> None:
    """Raises UploadMismatch."""
    if record.sha256 is not None and digest != record.sha256:
        detail = f"the upload was announced with the SHA-256 {record.sha256}, but has {digest}"
        raise UploadMismatch(detail, upload_id=upload, field="sha256", value=digest, bound=record.sha256)


class Uploading(Service):
    """The `uploads` until they are published, and the `payloads` of messages."""

    def __init__(self, context: Context, keyring: PeerKeyring, reading: Reading) -> None:
        coordination, clock, settings = context.coordination, context.clock, context.settings
        store, roster = context.store.payloads, context.roster
        keys = LinkKeys(coordination, context.ids, lambda: keyring.link_roots(roster.brokers))
        self.uploads = Uploads(
            UploadRecords(context.catalog, coordination),
            BrokerUrls(keys, clock, context.url, settings.upload_url_s),
            store,
            clock,
            context.ids,
            settings,
        )
        self.payloads = Payloads(
            store,
            self.uploads.claim,
            self.uploads.link,
            reading.readables.every,
            reading.readables.time.unexpired,
            clock,
            settings.publish_timeout_s,
        )

    async def stop(self) -> None:
        """Ends the transfers between this broker and the store."""
        await self.uploads.close()
