"""Building what a broker that has a journal serves."""

from seaweedq.broker.audit.topic import AuditTopic
from seaweedq.broker.drain import Drain
from seaweedq.broker.imports.record_store import ImportRecords
from seaweedq.broker.imports.runner import ImportRunner, ReaderSetup
from seaweedq.broker.imports.service import Imports, UploadClaims
from seaweedq.broker.letters.letters import DeadLetters
from seaweedq.broker.letters.payload_copies import PayloadCopies
from seaweedq.broker.letters.target import LetterTopics
from seaweedq.broker.maintenance import Maintenance
from seaweedq.broker.publish.publisher import Publisher
from seaweedq.broker.read.cluster_time import ClusterTime
from seaweedq.broker.readiness import Readiness
from seaweedq.broker.reshape.change_requests import ChangeRequests
from seaweedq.broker.reshape.planner import Planner
from seaweedq.broker.services import (
    Core,
    Environment,
    Joined,
    Messaging,
    Reading,
    Serving,
    Suspecting,
)
from seaweedq.broker.streams.feeds import Feeds
from seaweedq.broker.streams.subscription_streams import SubscriptionStreams
from seaweedq.broker.streams.topic_streams import TopicStreams
from seaweedq.broker.suspicion.greeter import Greeter
from seaweedq.broker.suspicion.greetings import Greetings
from seaweedq.broker.suspicion.marks import Marks
from seaweedq.broker.suspicion.revoker import Revoker
from seaweedq.broker.topic_deletion import TopicClosing, TopicDeletion
from seaweedq.broker.uploads.message_payloads import Payloads
from seaweedq.broker.wiring.leading import build_leading
from seaweedq.broker.wiring.messaging import build_messaging


def build_serving(environment: Environment, core: Core, joined: Joined, readiness: Readiness) -> Serving:
    """Builds what needs a journal, and the journal, which is empty."""
    messaging = build_messaging(environment, core, joined, readiness)
    subscribing, reshaping = messaging.subscribing, messaging.reshaping
    payloads = _payloads(environment, joined, messaging.reading)
    imports = _imports(environment, core, joined, messaging.publishing.publisher, messaging.reading.readables.time)
    closing = _closing(messaging, imports)
    deletion = TopicDeletion(core.catalog, joined.topics, messaging.reading.positions, closing, imports, joined.uploads)
    return Serving(
        log=messaging.log,
        loads=messaging.loads,
        publishing=messaging.publishing,
        reading=messaging.reading,
        subscribing=subscribing,
        reshaping=reshaping,
        letters=_letters(environment, core, joined, messaging, payloads),
        audit=_audit(core, joined, messaging.publishing.publisher),
        streams=_streams(core, messaging.reading),
        subscription_streams=SubscriptionStreams(
            subscribing.admin, subscribing.dispatcher, subscribing.finder, payloads, environment.peers
        ),
        payloads=payloads,
        imports=imports,
        changes=_changes(environment, joined, reshaping.planner, readiness),
        closing=closing,
        deletion=deletion,
        leading=build_leading(environment, core, joined, messaging, deletion),
        suspecting=_suspecting(environment, core, joined, messaging.reading.readables.time),
        drain=Drain(core.catalog, core.roster, joined.membership, messaging.loads, reshaping.mover),
        maintenance=Maintenance(
            environment.settings, joined.view, core.budget, core.cache, subscribing.dispatcher, messaging.log
        ),
    )


def _closing(messaging: Messaging, imports: Imports) -> TopicClosing:
    subscribing = messaging.subscribing
    forgets = [
        subscribing.dispatcher.forget,
        imports.forget,
        subscribing.assignment.forget,
        messaging.publishing.identities.forget,
    ]
    return TopicClosing(messaging.log, messaging.reshaping.reshaper, forgets)


def _letters(
    environment: Environment, core: Core, joined: Joined, messaging: Messaging, payloads: Payloads
) -> DeadLetters:
    topics = LetterTopics(joined.view.catalog, joined.topics, core.callers)
    copies = PayloadCopies(payloads, environment.store.payloads)
    dispatcher, readables, publisher = (
        messaging.subscribing.dispatcher,
        messaging.reading.readables,
        messaging.publishing.publisher,
    )
    return DeadLetters(joined.view, dispatcher, readables, topics, publisher, copies)


def _audit(core: Core, joined: Joined, publisher: Publisher) -> AuditTopic:
    broker, level = joined.membership.broker, core.level
    return AuditTopic(core.audit, core.catalog, joined.topics, publisher, broker, lambda: level.written)


def _streams(core: Core, reading: Reading) -> TopicStreams:
    feeds = Feeds(core.catalog, reading.readables)
    return TopicStreams(core.catalog, reading.readables, reading.positions, core.tombstones, feeds)


def _payloads(environment: Environment, joined: Joined, reading: Reading) -> Payloads:
    return Payloads(
        environment.store.payloads,
        joined.uploads.claim,
        joined.uploads.link,
        reading.readables.every,
        reading.readables.time.unexpired,
        environment.clock,
        environment.settings.publish_timeout_s,
    )


def _imports(environment: Environment, core: Core, joined: Joined, publisher: Publisher, time: ClusterTime) -> Imports:
    settings = environment.settings
    records = ImportRecords(core.catalog, environment.coordination, joined.membership)
    readers = ReaderSetup(environment.import_reader, settings.home)
    runner = ImportRunner(core.catalog, records, publisher, environment.store, core.budget, readers)
    claims = UploadClaims(joined.uploads.find, joined.uploads.claim)
    return Imports(joined.view, records, claims, runner, time.learn, settings)


def _changes(environment: Environment, joined: Joined, planner: Planner, readiness: Readiness) -> ChangeRequests:
    timeout_s = environment.settings.publish_timeout_s
    return ChangeRequests(joined.view, planner, environment.peers, timeout_s, readiness.is_stopping)


def _suspecting(environment: Environment, core: Core, joined: Joined, time: ClusterTime) -> Suspecting:
    coordination, membership, level = environment.coordination, joined.membership, core.level
    marks = Marks(coordination, lambda: revoker.wake())
    revoker = Revoker(joined.view, coordination, joined.election, level, marks)
    return Suspecting(
        greetings=Greetings(membership.broker, joined.view.clock),
        greeter=Greeter(
            coordination, membership, core.roster, level, marks, environment.peers, environment.clock, time.hear
        ),
        marks=marks,
        revoker=revoker,
    )
