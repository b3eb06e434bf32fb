"""Health and metrics of a broker; the cluster's state and format level."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Self

from fastapi import Response
from msgspec import UNSET, Meta, Struct, UnsetType

from seaweedq.access.rights import Action
from seaweedq.api.handlers.internal import Internal
from seaweedq.api.parameters import DIGITS, json_answer, moment
from seaweedq.api.routes import OF_BODIES, OPEN, Router
from seaweedq.api.services import Parts, PartsDep, body, given
from seaweedq.broker.broker import Broker
from seaweedq.broker.rpc import BrokerStatus
from seaweedq.broker.topics import find_orphaned_topics
from seaweedq.concurrency.futures import gather_bounded
from seaweedq.coordination.records import BrokerRecord
from seaweedq.errors import InvalidRequest, JournalConflict, LevelConflict, Unavailable

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
STATUS_S = 2.0
ASKED = 100  # brokers at a time
router = Router("cluster")


class BrokerAnswer(Struct):
    """A running broker and its load. The load's fields are null if the broker does not answer quickly.

    `memory_bytes` is the part of `memory_budget_bytes` in use. Rates are averages over 10 s. `oldest_tail_s` is the age
    of the oldest message that is not in a Parquet file yet. The broker can read levels from `lowest_level` to
    `highest_level`. `version` is empty for versions without format levels. `grpc_url` is null if the broker has no gRPC
    port."""

    id: str
    url: str
    grpc_url: str | None
    zone: str
    version: str
    lowest_level: int
    highest_level: int
    leader: bool
    starting: bool
    draining: bool
    segments: int
    tail_bytes: int | None
    unreleased_journal_bytes: int | None
    memory_bytes: int | None
    memory_budget_bytes: int | None
    messages_per_s: float | None
    bytes_per_s: float | None
    oldest_tail_s: float | None


class LeftAnswer(Struct):
    """The journal and the segments that a dead broker left behind, and some of their topics. `broker` is null for
    segments that never had an owner. `state` is the journal's state (`recovering`, `partly-recovered`,
    `needs-newer-broker`, or `unknown` if no running broker can reach the journal), or `unassigned` if only segments are
    left. `why` is the reason for the state. `since` is the time at which the state became `unknown`; otherwise `since`
    is null."""

    broker: str | None
    state: str
    why: str
    segments: int
    topics: tuple[str, ...]
    since: datetime | None


class ClusterAnswer(Struct, omit_defaults=True):
    """The running brokers and the leader. `store` is the URL of the store that all brokers share.

    Brokers that join must be able to read `level`. `level_written` is lower than `level` only during an upgrade. The
    cluster could be upgraded to `level_possible` now. `too_old` lists the brokers, and the dead brokers with journals,
    that cannot read `level_newest`. `unreadable` lists the ids of running brokers whose records only a newer broker can
    read. `left_behind` has the journals and segments of dead brokers. `brokers_wanted` is the number of brokers that
    the load needs, null if the leader has not decided yet or does not answer. `first_to_stop` is the id of the broker
    that an autoscaler should stop first, the one with the lowest utilization except the leader; null if the leader does
    not answer or runs alone."""

    cluster: str
    store: str
    level: int
    level_written: int
    level_possible: int
    level_newest: int
    too_old: list[str]
    leader: str | None
    brokers_wanted: int | None
    first_to_stop: str | None
    brokers: list[BrokerAnswer]
    left_behind: list[LeftAnswer]
    unreadable: list[str] | UnsetType = UNSET


class Health(Struct):
    """`status` is ok."""

    status: str


_EXAMPLE = {
    "cluster": "9f86d081884c7d65",
    "store": "file:///var/lib/seaweedq/store",
    "level": 2,
    "level_written": 2,
    "level_possible": 2,
    "level_newest": 2,
    "too_old": [],
    "leader": "broker.1f2e",
    "brokers_wanted": 1,
    "first_to_stop": None,
    "brokers": [
        {
            "id": "broker.1f2e",
            "url": "http://127.0.0.1:8080",
            "zone": "",
            "version": "0.1.0",
            "lowest_level": 1,
            "highest_level": 2,
            "leader": True,
            "starting": False,
            "draining": False,
            "segments": 4,
            "tail_bytes": 0,
            "unreleased_journal_bytes": 0,
            "memory_bytes": 65536,
            "memory_budget_bytes": 268435456,
            "messages_per_s": 120.5,
            "bytes_per_s": 6266.0,
            "oldest_tail_s": 0.0,
        }
    ],
    "left_behind": [],
}


@dataclass(frozen=True)
class ClusterServices:
    """The services of these routes. `own_status` returns this broker's status."""

    broker: Broker
    store_url: str
    own_status: Callable[[], BrokerStatus]

    @classmethod
    def of(cls, parts: Parts) -> Self:
        return cls(parts.broker, parts.broker.process.settings.store_path, parts.get(Internal).status)


ClusterDep = Annotated[ClusterServices, given(ClusterServices)]


@router.route(
    "GET",
    "/v1/cluster",
    Action.CLUSTER,
    "getCluster",
    "Get the brokers and the leader",
    answers={200: ClusterAnswer},
    shows=_EXAMPLE,
)
async def cluster(services: ClusterDep) -> Response:
    """Returns the leader, and the brokers with their loads."""
    context = services.broker.context
    leader, roster, catalog = await context.election.leader(), context.roster, context.catalog
    known = [(id, roster.brokers[id].record) for id in sorted(roster.brokers)]

    async def ask(one: tuple[str, BrokerRecord]) -> BrokerStatus | None:
        return await _status(services, one[0], one[1].url)

    def answer(one: tuple[str, BrokerRecord], status: BrokerStatus | None) -> BrokerAnswer:
        """Returns one broker, with its load if the broker answers."""
        id, record = one
        return BrokerAnswer(
            id=id,
            url=record.url,
            grpc_url=record.grpc_url or None,
            zone=record.zone,
            version=record.version,
            lowest_level=record.lowest,
            highest_level=record.highest,
            leader=id == leader,
            starting=record.starting,
            draining=record.draining,
            segments=len(catalog.owned_by(id)),
            tail_bytes=status.tail_bytes if status else None,
            unreleased_journal_bytes=status.unreleased_journal_bytes if status else None,
            memory_bytes=status.held_bytes if status else None,
            memory_budget_bytes=status.budget_bytes if status else None,
            messages_per_s=round(status.messages_per_s, DIGITS) if status else None,
            bytes_per_s=round(status.bytes_per_s, DIGITS) if status else None,
            oldest_tail_s=round(status.oldest_tail_s, DIGITS) if status else None,
        )

    told = await gather_bounded(ASKED, ask, known)
    wanted = [status.brokers_wanted for status in told if status]
    level = context.level
    return json_answer(
        ClusterAnswer(
            cluster=context.cluster,
            store=services.store_url,
            level=level.level,
            level_written=level.written,
            level_possible=level.possible,
            level_newest=level.newest,
            too_old=level.too_old_for(level.newest),
            leader=leader,
            brokers_wanted=max(wanted, default=0) or None,
            first_to_stop=max((status.first_to_stop for status in told if status), default="") or None,
            brokers=list(map(answer, known, told)),
            left_behind=[
                LeftAnswer(
                    one.broker,
                    one.state,
                    one.why,
                    one.segments,
                    one.topics,
                    None if one.since_us is None else moment(one.since_us),
                )
                for one in find_orphaned_topics(catalog, roster)
            ],
            unreadable=sorted(roster.unreadable) or UNSET,
        )
    )


async def _status(services: ClusterServices, id: str, url: str) -> BrokerStatus | None:
    if id == services.broker.id:
        return services.own_status()
    try:
        return await services.broker.process.peers.call(url, "status", None, BrokerStatus, STATUS_S)
    except Unavailable:
        return None


MAX_LEVEL, MAX_NAME = 1_000_000, 256


class LevelRequest(Struct, forbid_unknown_fields=True):
    """The level to which to upgrade the cluster. The default is the highest level that at least one broker can read."""

    level: Annotated[int, Meta(ge=1, le=MAX_LEVEL)] | UnsetType = UNSET


class LevelAnswer(Struct):
    """The cluster's level, which all brokers read and write."""

    level: int


@router.route(
    "POST",
    "/v1/cluster/level",
    Action.CLUSTER,
    "raiseLevel",
    "Upgrade the cluster's format level",
    answers={200: LevelAnswer},
    refuses=(*OF_BODIES, LevelConflict),
    shows={"level": 2},
)
async def raise_level(
    services: ClusterDep, wanted: Annotated[LevelRequest, body(LevelRequest, {"level": 2})]
) -> Response:
    """Upgrades the cluster's format level, and answers once brokers write the new formats. The upgrade is irreversible:
    brokers that cannot read the level can no longer join.

    Repeating the request is safe, and completes an interrupted upgrade. 409 `level-conflict` means that the cluster
    already has a higher level, or that a running broker, or a broker whose journal is still needed, cannot read the
    requested level."""
    to = None if wanted.level is UNSET else wanted.level
    return json_answer(LevelAnswer((await services.broker.leadership.upgrade.upgrade(to)).level))


class LossRequest(Struct, forbid_unknown_fields=True):
    """The dead broker whose journal you give up."""

    broker: Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]


class LossAnswer(Struct):
    """`mirrors` are the brokers that had the journal's newest messages in memory. If the store was available, at most
    the messages of the last `missing_s` seconds are missing. If `missing_s` is null, no limit is known, as for a file
    journal."""

    broker: str
    mirrors: tuple[str, ...]
    missing_s: float | None


@router.route(
    "POST",
    "/v1/cluster/accept-loss",
    Action.CLUSTER,
    "acceptLoss",
    "Accept the loss of a dead broker's journal",
    answers={200: LossAnswer},
    refuses=(*OF_BODIES, JournalConflict),
    shows={"broker": "broker.1f2e", "mirrors": ["broker.77ab", "broker.90cd"], "missing_s": 10.0},
)
async def accept_loss(
    services: ClusterDep, wanted: Annotated[LossRequest, body(LossRequest, {"broker": "broker.1f2e"})]
) -> Response:
    """Accepts the loss of messages that were only in a dead broker's journal, on disk or in memory. The broker
    answers once this decision is recorded. The decision cannot be undone.

    The leader then recovers the remaining messages, seals the dead broker's segments at the end of their files, and
    continues them in successors. No other message ever gets the id of a lost message. Subscriptions of these topics may
    again receive messages that they acked shortly before. If the data folder comes back later, a broker moves the
    journal to `given-up/` in that folder, and does not read it. Repeating the request is safe. 409 `journal-conflict`
    means that the broker is running, that a running broker can reach its journal, that a process uses its data folder,
    that it is an object journal, or that nothing is left to recover."""
    if "/" in wanted.broker:
        raise InvalidRequest(
            f"broker must be the id of a broker, such as broker.1f2e, not {wanted.broker!r}",
            field="broker",
            value=wanted.broker,
        )
    accepted = await services.broker.leadership.losses.accept(wanted.broker)
    return json_answer(LossAnswer(wanted.broker, accepted.mirrors, accepted.missing_s))


@router.route(
    "GET", "/healthz", OPEN, "isAlive", "Check that the broker is alive", answers={200: Health}, shows={"status": "ok"}
)
async def healthz() -> Response:
    """Answers 200 as long as the process is alive."""
    return json_answer(Health("ok"))


@router.route(
    "GET",
    "/readyz",
    OPEN,
    "isReady",
    "Check that the broker is ready",
    answers={200: Health},
    shows={"status": "ok"},
)
async def readyz(parts: PartsDep) -> Response:
    """Answers 200 while the broker accepts work, otherwise 503."""
    parts.broker.readiness.check_takes_work()
    return json_answer(Health("ok"))


@router.route(
    "GET",
    "/metrics",
    Action.METRICS,
    "getMetrics",
    "Get the metrics of the broker",
    answers={200: {"text/plain": {"schema": {"type": "string"}}}},
)
async def metrics(parts: PartsDep) -> Response:
    """Returns Prometheus metrics."""
    return Response(parts.metrics(), media_type=CONTENT_TYPE)
