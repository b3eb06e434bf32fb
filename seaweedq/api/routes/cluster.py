"""Health, metrics and the state of the cluster."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Request, Response
from msgspec import Struct

from seaweedq.api.asgi.openapi import described, json_answer
from seaweedq.api.asgi.services import given
from seaweedq.api.routes.metrics import CONTENT_TYPE
from seaweedq.broker.rpc.client import Peers
from seaweedq.broker.rpc.messages import BrokerStatus
from seaweedq.broker.topics.cluster_view import ClusterView
from seaweedq.concurrency.gather import gather_bounded
from seaweedq.coordination.election import Election
from seaweedq.coordination.records import BrokerRecord
from seaweedq.errors import Unavailable

STATUS_S = 2.0
ASKED = 100  # brokers at a time
router = APIRouter(tags=["cluster"])


class BrokerAnswer(Struct):
    """A living broker and the bytes that it holds; they are null where it does not answer at once."""

    id: str
    url: str
    zone: str
    leader: bool
    draining: bool
    segments: int
    tail_bytes: int | None
    unreleased_journal_bytes: int | None


class ClusterAnswer(Struct):
    """The living brokers and the leader; `store` is the URL of the store that all of them share."""

    cluster: str
    store: str
    leader: str | None
    brokers: list[BrokerAnswer]


class Health(Struct):
    """`status` is ok."""

    status: str


_EXAMPLE = {
    "cluster": "9f86d081884c7d65",
    "store": "file:///var/lib/seaweedq/store",
    "leader": "broker.1f2e",
    "brokers": [
        {
            "id": "broker.1f2e",
            "url": "http://127.0.0.1:8080",
            "zone": "",
            "leader": True,
            "draining": False,
            "segments": 4,
            "tail_bytes": 0,
            "unreleased_journal_bytes": 0,
        }
    ],
}


@dataclass(frozen=True)
class ClusterServices:
    """The services of these routes. `cluster` is the cluster's id, `own_status` returns this broker's status."""

    cluster: str
    store_url: str
    view: ClusterView
    election: Election
    peers: Peers
    own_status: Callable[[], BrokerStatus]


Services = Annotated[ClusterServices, given(ClusterServices)]


@router.get("/v1/cluster", **described(None, {200: ClusterAnswer}, shows=_EXAMPLE))
async def cluster(services: Services) -> Response:
    """Returns the leader, the brokers and their loads."""
    leader = await services.election.leader()
    roster = services.view.roster
    known = [(id, roster.brokers[id].record) for id in sorted(roster.brokers)]

    async def answer(one: tuple[str, BrokerRecord]) -> BrokerAnswer:
        id, record = one
        status = await _status(services, id, record.url)
        return BrokerAnswer(
            id=id,
            url=record.url,
            zone=record.zone,
            leader=id == leader,
            draining=record.draining,
            segments=len(services.view.catalog.owned_by(id)),
            tail_bytes=status.tail_bytes if status else None,
            unreleased_journal_bytes=status.unreleased_journal_bytes if status else None,
        )

    brokers = await gather_bounded(ASKED, answer, known)
    return json_answer(ClusterAnswer(services.cluster, services.store_url, leader, brokers))


async def _status(services: ClusterServices, id: str, url: str) -> BrokerStatus | None:
    if id == services.view.membership.broker:
        return services.own_status()
    try:
        return await services.peers.call(url, "status", None, BrokerStatus, STATUS_S)
    except Unavailable:
        return None


@router.get("/healthz", **described(None, {200: Health}, shows={"status": "ok"}))
async def healthz() -> Response:
    """Answers while the process is alive."""
    return json_answer(Health("ok"))


@router.get("/readyz", **described(None, {200: Health}, shows={"status": "ok"}))
async def readyz(request: Request) -> Response:
    """Answers while the broker can take work; else 503."""
    request.app.state.readiness.check_takes_work()
    return json_answer(Health("ok"))


@router.get("/metrics", **described(None, {200: {"text/plain": {"schema": {"type": "string"}}}}))
async def metrics(request: Request) -> Response:
    """Returns Prometheus metrics."""
    return Response(request.app.state.metrics(), media_type=CONTENT_TYPE)
