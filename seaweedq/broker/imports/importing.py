"""Importing: files that were uploaded become messages, row by row, at whichever broker works on them.

Requests are here; broker/imports/working has who works, broker/imports/runner the steps of one import.
"""

from collections.abc import Sequence
from typing import Literal

from seaweedq.broker.context import Context
from seaweedq.broker.imports.records import WorkId, WorkRecords, is_over
from seaweedq.broker.imports.runner import ReaderSetup
from seaweedq.broker.imports.working import FileWork
from seaweedq.broker.imports.write_lists import ListedUpload
from seaweedq.broker.publish.publisher import Publishing
from seaweedq.broker.read.reading import Reading
from seaweedq.broker.topics.catalog import Topic
from seaweedq.broker.uploads.uploads import Uploads
from seaweedq.checks import reach
from seaweedq.coordination.keys import IMPORTS
from seaweedq.coordination.records import ImportRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import UploadConflict, UploadNotFound

Format = Literal["parquet", "ndjson", "arrow"]


class FileOfImport:
    """The one file of an import, which its record names."""

    kind, called = "import", "the import of upload"

    async def claim(self, where: WorkId, record: ImportRecord) -> Sequence[ListedUpload]:
        """Returns the file, which was claimed before the record was there."""
        return [ListedUpload(where.name, record.size, record.sha256, record.rows or 0)]

    find = claim

    async def list_anew(self, where: WorkId, record: ImportRecord, files: Sequence[ListedUpload]) -> ImportRecord:
        """Returns the record as it is: it has the rows of its only file."""
        return record

    async def forget(self, where: WorkId, record: ImportRecord) -> None:
        """Removes nothing: the upload goes when it has expired."""


class Importing(FileWork[ImportRecord]):
    """The imports that this broker works on, each with a reader of its own, and the records of all others."""

    def __init__(
        self, context: Context, readers: ReaderSetup, publishing: Publishing, reading: Reading, uploads: Uploads
    ) -> None:
        super().__init__(context, WorkRecords(IMPORTS, context), FileOfImport(), readers, publishing)
        self._uploads = uploads
        self._catalog = context.catalog
        self._cluster_us = reading.readables.time.learn

    async def begin(
        self, topic: Topic, upload_id: str, format: Format, bare: bool, version: int | None, traceparent: str | None
    ) -> ImportRecord:
        """Begins an import of a file that has a version of the topic's schema, the newest if None, or joins it.
        Raises the errors of a claim of an upload, and UploadConflict if it is imported as another format or version."""
        where = WorkId.from_topic(topic, upload_id)
        held = await self._records.read(where)
        if held is None:
            held = await self._create(topic, where, format, bare, version, traceparent)
        if (held.record.format, held.record.bare) != (format, bare):
            was = f"{held.record.format}{' (bare)' if held.record.bare else ''}"
            raise UploadConflict(
                f"an import of this upload with other options has already started: {was}", upload_id=upload_id
            )
        if version not in (None, held.record.schema_id):
            raise UploadConflict(
                f"an import of this upload with version {held.record.schema_id} of the schema has already started",
                upload_id=upload_id,
            )
        if not is_over(held.record):
            await self._begin_work(where, held)
        return held.record

    async def show(self, topic: Topic, name: str) -> ImportRecord:
        """Returns the record of an import. Raises UploadNotFound."""
        held = await self._records.read(WorkId.from_topic(topic, name))
        if held is None:
            raise UploadNotFound(
                f"no import of upload {name!r} is known: none was started, or it ended too long ago",
                topic=topic.name,
                upload_id=name,
            )
        return held.record

    async def _create(
        self, topic: Topic, where: WorkId, format: Format, bare: bool, version: int | None, traceparent: str | None
    ) -> Versioned[ImportRecord]:
        await self._catalog.refresh(topic.name)  # its schema may have a later version, by which the file was made
        now_us = await self._cluster_us()
        upload = (await self._uploads.find(topic, where.name)).record
        reference = await self._uploads.claim(topic, where.name, "imported")
        reach("import.claimed")
        record = ImportRecord(
            format,
            bare,
            upload.name,
            reference.size,
            reference.sha256,
            now_us,
            upload.expires_us,
            self._settings.max_message_bytes,
            self._settings.import_batch_rows,
            self._membership.broker,
            schema_id=topic.layout.schema_id if version is None else version,
            traceparent=traceparent,
        )
        held = await self._records.create(topic, where, record)
        reach("import.checking")
        return held
