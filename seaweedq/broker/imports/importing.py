"""Importing: files that were uploaded become messages, at one of the brokers."""

from seaweedq.broker.context import Context
from seaweedq.broker.imports.reader_process import StartReader
from seaweedq.broker.imports.record_store import ImportRecords
from seaweedq.broker.imports.runner import ImportRunner, ReaderSetup
from seaweedq.broker.imports.service import Imports, UploadClaims
from seaweedq.broker.publish.publishing import Publishing
from seaweedq.broker.read.reading import Reading
from seaweedq.broker.service import Service, Tasks
from seaweedq.broker.topics.catalog import Topic


class Importing(Service):
    """The `imports` that this broker works on, each with a reader of its own."""

    def __init__(
        self,
        context: Context,
        start_reader: StartReader,
        publishing: Publishing,
        reading: Reading,
        claims: UploadClaims,
    ) -> None:
        catalog, settings = context.catalog, context.settings
        records = ImportRecords(catalog, context.coordination, context.membership)
        readers = ReaderSetup(start_reader, settings.home)
        runner = ImportRunner(catalog, records, publishing.publisher, context.store, context.budget, readers)
        self.imports = Imports(context.view, records, claims, runner, reading.readables.time.learn, settings)

    async def run(self) -> Tasks:
        """Continues imports that no broker works on."""
        return {"imports": self.imports.look_often()}

    async def hand_over(self) -> None:
        """Stops at the end of a batch, and releases all imports, so that other brokers continue them."""
        await self.imports.leave()

    def begin_stop(self) -> None:
        """Ends the requests that wait; running imports end with their batch."""
        self.imports.begin_stop()

    async def stop(self) -> None:
        """Cancels the imports under way; the broker that adopts one continues where its record says."""
        await self.imports.stop()

    def forget(self, topic: Topic) -> None:
        """Ends the imports into a topic that is being deleted, or gone."""
        self.imports.forget(topic)
