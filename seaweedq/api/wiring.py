"""Gives each route the services that it uses, out of a broker that is ready: no route knows the broker as a whole.

A group of services is found by its type. Routes that share one, such as the acks of pulls and of streams, get the
same object.
"""

from collections.abc import Iterator
from typing import Any

from seaweedq.api.bodies.request_reader import RequestReader
from seaweedq.api.internal.calls import BrokerCalls, SegmentCalls, StreamCalls, TopicCalls
from seaweedq.api.internal.proxy import Proxy
from seaweedq.api.routes.access.principals import PrincipalServices
from seaweedq.api.routes.access.tokens import TokenServices
from seaweedq.api.routes.cluster.cluster import ClusterServices
from seaweedq.api.routes.cluster.confirmation import ConfirmServices
from seaweedq.api.routes.cluster.level import LevelServices
from seaweedq.api.routes.messages.fetch import FetchServices
from seaweedq.api.routes.messages.imports import ImportServices
from seaweedq.api.routes.messages.publish import Publish
from seaweedq.api.routes.segments.changes import ChangeServices
from seaweedq.api.routes.segments.history import HistoryServices
from seaweedq.api.routes.segments.segment_map import SegmentMapServices
from seaweedq.api.routes.subscriptions.acks import Acks
from seaweedq.api.routes.subscriptions.pulls import Pulls, SubscriptionCalls
from seaweedq.api.routes.subscriptions.seek import SeekServices
from seaweedq.api.routes.subscriptions.subscriptions import SubscriptionServices
from seaweedq.api.routes.topics.files import FileServices
from seaweedq.api.routes.topics.topics import TopicServices
from seaweedq.api.routes.uploads.content import UploadContent
from seaweedq.api.routes.uploads.payloads import PayloadServices
from seaweedq.api.routes.uploads.uploads import UploadServices
from seaweedq.api.streams.chunks import Chunks
from seaweedq.api.streams.outlets import Room
from seaweedq.api.streams.subscription_stream import SubscriptionStreamRoute
from seaweedq.api.streams.topic_stream import TopicStreamRoute
from seaweedq.broker.access.principals import Principals
from seaweedq.broker.broker import Broker


def groups_of(broker: Broker, reader: RequestReader, proxy: Proxy) -> Iterator[Any]:
    """Yields the routes' groups of services, taken out of a broker that is ready."""
    calls = _broker_calls(broker)
    yield calls
    yield from _other_calls(broker)
    yield from _cluster(broker, reader, calls)
    yield from _topics(broker, reader)
    yield from _messages(broker, reader, proxy)
    yield from _subscriptions(broker, reader, proxy)


def _broker_calls(broker: Broker) -> BrokerCalls:
    core, serving = broker.core, broker.serving
    requested, greetings = serving.leading.requested, serving.suspecting.greetings
    receiver, clock = serving.publishing.receiver, broker.environment.clock
    return BrokerCalls(receiver, serving.loads, core.budget, serving.log, requested, greetings, core.accounts, clock)


def _other_calls(broker: Broker) -> Iterator[Any]:
    """Yields the calls of other brokers about topics, segments and streams."""
    catalog, serving = broker.core.catalog, broker.serving
    mover, marks, histories = serving.reshaping.mover, serving.leading.marks, serving.leading.histories
    yield TopicCalls(catalog, serving.reading.local_positions, serving.closing, mover, marks, histories)
    yield SegmentCalls(catalog, serving.reading.server)
    yield StreamCalls(catalog, serving.subscription_streams, serving.subscribing.reports)


def _cluster(broker: Broker, reader: RequestReader, calls: BrokerCalls) -> Iterator[Any]:
    """Yields what shows and changes the cluster, its principals and their tokens."""
    core, joined, environment = broker.core, broker.joined, broker.environment
    store_url, peers = environment.settings.store_path, environment.peers
    yield ClusterServices(joined.cluster, store_url, joined.view, joined.election, core.level, peers, calls.status)
    yield LevelServices(joined.rise, reader)
    yield ConfirmServices(broker.serving.leading.restored, reader)
    principals = Principals(environment.coordination, core.callers.view, core.level, environment.clock, environment.ids)
    yield PrincipalServices(principals, reader)
    yield TokenServices(principals, reader)


def _topics(broker: Broker, reader: RequestReader) -> Iterator[Any]:
    """Yields what shows and changes topics and their segments."""
    core, joined, serving = broker.core, broker.joined, broker.serving
    catalog, reading, leading = core.catalog, serving.reading, serving.leading
    positions = reading.positions
    yield TopicServices(catalog, joined.topics, positions, serving.deletion, reader, core.level, leading.retained)
    yield SegmentMapServices(catalog, positions, core.roster, core.tombstones, reading.readables.time)
    yield HistoryServices(catalog, leading.histories, broker.environment.clock)
    yield FileServices(catalog, reading.files, positions, reading.readables, core.tombstones, broker.environment.clock)
    yield ChangeServices(catalog, core.roster, serving.changes, reader)


def _messages(broker: Broker, reader: RequestReader, proxy: Proxy) -> Iterator[Any]:
    """Yields what brings messages and payloads in, and reads both without a subscription."""
    core, joined, serving = broker.core, broker.joined, broker.serving
    catalog, reading, payloads = core.catalog, serving.reading, serving.payloads
    time = reading.readables.time
    yield Publish(catalog, joined.topics, serving.publishing.publisher, payloads, reader, time)
    yield FetchServices(catalog, reading.finder, proxy, reading.fetcher, payloads, core.tombstones, time, reader.unread)
    yield PayloadServices(catalog, payloads, reader)
    yield ImportServices(catalog, serving.imports, reader)
    yield UploadServices(catalog, joined.topics, joined.uploads, reader)
    yield UploadContent(catalog, joined.uploads, broker.environment.store, reader)


def _subscriptions(broker: Broker, reader: RequestReader, proxy: Proxy) -> Iterator[Any]:
    """Yields what shows and changes subscriptions, and what delivers their messages."""
    core, serving, environment = broker.core, broker.serving, broker.environment
    catalog, subscribing, ids = core.catalog, serving.subscribing, environment.ids
    dispatcher, finder = subscribing.dispatcher, subscribing.finder
    calls = SubscriptionCalls(catalog, dispatcher, finder, proxy, reader, core.level)
    acks = Acks(calls)
    yield acks
    yield Pulls(calls, serving.payloads, subscribing.waits, ids)
    yield from _streams(broker, reader, acks)
    admin, meter, letters = subscribing.admin, subscribing.meter, serving.letters.topics
    yield SubscriptionServices(catalog, admin, dispatcher, finder, proxy, reader, core.level, meter, letters)
    yield SeekServices(catalog, subscribing.seeking, finder, proxy, reader, core.level, ids)


def _streams(broker: Broker, reader: RequestReader, acks: Acks) -> Iterator[Any]:
    """Yields the streams of topics and of subscriptions, which share the memory for what they send."""
    serving, clock, ids = broker.serving, broker.environment.clock, broker.environment.ids
    room, chunks, ended = (
        Room(reader.unread, clock),
        Chunks(serving.payloads, serving.reading.readables.time, clock),
        serving.streams.feeds.ended,
    )
    yield TopicStreamRoute(broker.core.catalog, serving.streams, chunks, room, clock)
    yield SubscriptionStreamRoute(serving.subscription_streams, acks, ended, room, clock, ids)
