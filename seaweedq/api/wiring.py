"""Gives each route the services that it uses, out of a broker that is ready: no route knows the broker as a whole.

A group of services is found by its type. Routes that share one, such as the acks of pulls and of streams, get the
same object.
"""

from collections.abc import Iterator
from typing import Any

from seaweedq.api.connections.request_reader import RequestReader
from seaweedq.api.handlers.acks import Acks
from seaweedq.api.handlers.cluster import ClusterServices, ConfirmServices, LevelServices
from seaweedq.api.handlers.fetch import FetchServices, PayloadServices
from seaweedq.api.handlers.files import FileServices
from seaweedq.api.handlers.imports import ImportServices
from seaweedq.api.handlers.internal import BrokerCalls, SegmentCalls, StreamCalls, TopicCalls
from seaweedq.api.handlers.principals import PrincipalServices
from seaweedq.api.handlers.publish import Publish
from seaweedq.api.handlers.pulls import Pulls, SubscriptionCalls
from seaweedq.api.handlers.segments import ChangeServices, HistoryServices, SegmentMapServices
from seaweedq.api.handlers.subscriptions import SeekServices, SubscriptionServices
from seaweedq.api.handlers.tokens import TokenServices
from seaweedq.api.handlers.topics import TopicServices
from seaweedq.api.handlers.uploads import UploadContent, UploadServices
from seaweedq.api.proxy import Proxy
from seaweedq.api.streams.session import Chunks, StreamMemory
from seaweedq.api.streams.subscription_stream import SubscriptionStreamRoute
from seaweedq.api.streams.topic_stream import TopicStreamRoute
from seaweedq.broker.access import Principals
from seaweedq.broker.broker import Broker


def groups_of(broker: Broker, reader: RequestReader, proxy: Proxy) -> Iterator[Any]:
    """Yields the routes' groups of services, taken out of a broker that is ready."""
    calls = BrokerCalls(broker)
    yield from (calls, TopicCalls(broker), SegmentCalls(broker), StreamCalls(broker))
    yield from _cluster(broker, reader, calls)
    yield from _topics(broker, reader)
    yield from _messages(broker, reader, proxy)
    yield from _subscriptions(broker, reader, proxy)


def _cluster(broker: Broker, reader: RequestReader, calls: BrokerCalls) -> Iterator[Any]:
    """Yields what shows and changes the cluster, its principals and their tokens."""
    context = broker.context
    store_url = context.settings.store_path
    yield ClusterServices(broker, store_url, calls.status)
    yield LevelServices(broker, reader)
    yield ConfirmServices(broker.retaining.restored, reader)
    principals = Principals(context.coordination, broker.callers.view, context.clock, context.ids)
    yield PrincipalServices(principals, reader)
    yield TokenServices(principals, reader)


def _topics(broker: Broker, reader: RequestReader) -> Iterator[Any]:
    """Yields what shows and changes topics and their segments."""
    catalog, reading, tombstones, clock = (
        broker.catalog,
        broker.reading,
        broker.context.tombstones,
        broker.process.clock,
    )
    positions = reading.positions
    yield TopicServices(catalog, broker.topics, positions, broker.deletion, reader, broker.retaining.files)
    yield SegmentMapServices(catalog, positions, broker.roster, tombstones, reading.readables.time)
    yield HistoryServices(catalog, broker.load.histories, clock)
    yield FileServices(catalog, reading.files, positions, reading.readables, tombstones, clock)
    yield ChangeServices(catalog, broker.roster, broker.reshaping.changes, reader)


def _messages(broker: Broker, reader: RequestReader, proxy: Proxy) -> Iterator[Any]:
    """Yields what brings messages and payloads in, and reads both without a subscription."""
    catalog, topics, reading = broker.catalog, broker.topics, broker.reading
    uploads, payloads, tombstones = broker.uploading.uploads, broker.uploading.payloads, broker.context.tombstones
    time = reading.readables.time
    yield Publish(catalog, topics, broker.publishing.publisher, payloads, reader, time)
    yield FetchServices(catalog, reading.finder, proxy, reading.fetcher, payloads, tombstones, time, reader.unread)
    yield PayloadServices(catalog, payloads, reader)
    yield ImportServices(broker, reader)
    yield UploadServices(catalog, topics, uploads, reader)
    yield UploadContent(catalog, uploads, broker.process.store, reader)


def _subscriptions(broker: Broker, reader: RequestReader, proxy: Proxy) -> Iterator[Any]:
    """Yields what shows and changes subscriptions, and what delivers their messages."""
    catalog, subscribing, ids = broker.catalog, broker.subscribing, broker.process.ids
    dispatcher, finder = subscribing.dispatcher, subscribing.finder
    calls = SubscriptionCalls(catalog, dispatcher, finder, proxy, reader)
    acks = Acks(calls)
    yield acks
    yield Pulls(calls, broker.uploading.payloads, subscribing.waits, ids)
    yield from _streams(broker, reader, acks)
    admin, meter, letters = subscribing.admin, subscribing.meter, broker.dead_lettering.topics
    yield SubscriptionServices(catalog, admin, dispatcher, finder, proxy, reader, meter, letters)
    yield SeekServices(catalog, subscribing.seeking, finder, proxy, reader, ids)


def _streams(broker: Broker, reader: RequestReader, acks: Acks) -> Iterator[Any]:
    """Yields the streams of topics and of subscriptions, which share the memory for what they send."""
    streaming, clock, ids = broker.streaming, broker.process.clock, broker.process.ids
    room, chunks, ended = (
        StreamMemory(reader.unread, clock),
        Chunks(broker.uploading.payloads, broker.reading.readables.time, clock),
        streaming.watches.ended,
    )
    yield TopicStreamRoute(broker.catalog, streaming.topics, chunks, room, clock)
    yield SubscriptionStreamRoute(streaming.subscriptions, acks, ended, room, clock, ids)
