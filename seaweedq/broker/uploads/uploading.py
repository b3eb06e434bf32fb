"""Uploading: payloads that come in parts and stay beside their messages, and what reads them again."""

from seaweedq.broker.context import Context
from seaweedq.broker.read.reading import Reading
from seaweedq.broker.rpc.peer_keyring import PeerKeyring
from seaweedq.broker.service import Service
from seaweedq.broker.uploads.broker_urls import BrokerUrls, LinkKeys
from seaweedq.broker.uploads.message_payloads import Payloads
from seaweedq.broker.uploads.records import UploadRecords
from seaweedq.broker.uploads.service import Uploads


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
        """Ends what is under way between this broker and the store."""
        await self.uploads.close()
