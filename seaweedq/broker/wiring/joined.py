"""Building what a member of the cluster has, and who it is."""

from collections.abc import Callable

from seaweedq.broker.journal_registration import JournalRegistration
from seaweedq.broker.level_rise import LevelGuard, LevelRise
from seaweedq.broker.log.entry_writer import EntryWriter
from seaweedq.broker.recovery.journal_recovery import JournalRecovery
from seaweedq.broker.recovery.recovery_memory import RecoveryMemory
from seaweedq.broker.recovery.replay import Replay
from seaweedq.broker.services import (
    Core,
    Environment,
    Joined,
)
from seaweedq.broker.topics.cluster_view import ClusterView
from seaweedq.broker.topics.topic_admin import TopicAdmin
from seaweedq.broker.uploads.broker_urls import BrokerUrls
from seaweedq.broker.uploads.link_keys import LinkKeys
from seaweedq.broker.uploads.record_store import UploadRecords
from seaweedq.broker.uploads.service import Uploads
from seaweedq.coordination.election import Election
from seaweedq.coordination.membership import BrokerIdentity, Membership
from seaweedq.journal.interface import Journals


def identity_of(environment: Environment) -> BrokerIdentity:
    """Returns who this broker is in this life."""
    settings = environment.settings
    spared = environment.revoked.spared_s > 0
    return BrokerIdentity.of(
        environment.ids, settings.name, environment.url, settings.zone, spared, environment.peer_url
    )


def build_joined(
    environment: Environment, core: Core, cluster: str, identity: BrokerIdentity, lost: Callable[[], None]
) -> Joined:
    """Builds what a member has. `lost` is told when its lease has ended."""
    membership = Membership(
        environment.coordination,
        environment.clock,
        identity,
        environment.settings.lease_s,
        lost,
        aside=environment.aside,
        prove=core.trust.keys.prove,
    )
    settings, coordination, clock = environment.settings, environment.coordination, environment.clock
    entries = EntryWriter(cluster, membership.broker, clock, environment.ids, lambda: core.level.written)
    view = ClusterView(core.catalog, core.roster, membership, clock)
    journals = environment.journals.open(environment.store, lambda: core.level.written)
    return Joined(
        cluster=cluster,
        view=view,
        membership=membership,
        election=Election(coordination, membership),
        entries=entries,
        topics=TopicAdmin(view, coordination, environment.store, entries, settings.publish_timeout_s, core.quota),
        uploads=_uploads(environment, core),
        journals=journals,
        recovery=_recovery(environment, core, membership, entries, journals),
        registration=JournalRegistration(coordination, membership, journals.describe(membership.broker)),
        rise=LevelRise(coordination, environment.store, core.level, membership, settings.lease_s),
        guard=LevelGuard(coordination, core.level, core.roster),
    )


def _uploads(environment: Environment, core: Core) -> Uploads:
    coordination, clock, ids = environment.coordination, environment.clock, environment.ids
    link_keys = LinkKeys(
        coordination, ids, lambda: core.trust.link_roots(core.roster.brokers), lambda: core.level.written
    )
    return Uploads(
        UploadRecords(core.catalog, coordination),
        BrokerUrls(link_keys, clock, environment.url, environment.settings.upload_url_s),
        environment.store.payloads,
        clock,
        ids,
        environment.settings,
    )


def _recovery(
    environment: Environment, core: Core, membership: Membership, entries: EntryWriter, journals: Journals
) -> JournalRecovery:
    coordination = environment.coordination
    memory = RecoveryMemory(core.budget)
    replay = Replay(core.catalog, coordination, environment.store, entries, lambda: core.level.written, memory)
    level, home = lambda: core.level.written, environment.journals.home.id
    return JournalRecovery(coordination, membership, replay, journals, home, level)
