"""Health, metrics and the state of the cluster."""

import asyncio

from fastapi import APIRouter, Request, Response
from msgspec import Struct

from seaweedq.api.asgi.openapi import broker_of, described, json_answer
from seaweedq.api.routes.metrics import CONTENT_TYPE, render
from seaweedq.broker.broker import Broker
from seaweedq.broker.rpc.messages import BrokerStatus
from seaweedq.errors import NotReady, Unavailable

STATUS_S = 2.0
router = APIRouter(tags=["cluster"])


class BrokerAnswer(Struct):
    """A living broker and what it holds; null where it does not answer at once."""

    id: str
    url: str
    zone: str
    leader: bool
    draining: bool
    segments: int
    tail_bytes: int | None
    unreleased_journal_bytes: int | None


class ClusterAnswer(Struct):
    """Who lives, and who leads; `store` is the URL of the store that all of them share."""

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


@router.get("/v1/cluster", **described(None, {200: ClusterAnswer}, shows=_EXAMPLE))
async def cluster(request: Request) -> Response:
    """The leader, the brokers and their loads."""
    broker = broker_of(request)
    leader = await broker.joined.election.leader()
    known = [(id, broker.core.roster.brokers[id].record) for id in sorted(broker.core.roster.brokers)]
    loads = await asyncio.gather(*(_status(broker, id, record.url) for id, record in known))
    brokers = [
        BrokerAnswer(
            id=id,
            url=record.url,
            zone=record.zone,
            leader=id == leader,
            draining=record.draining,
            segments=len(broker.core.catalog.owned_by(id)),
            tail_bytes=load.tail_bytes if load else None,
            unreleased_journal_bytes=load.unreleased_journal_bytes if load else None,
        )
        for (id, record), load in zip(known, loads, strict=True)
    ]
    return json_answer(ClusterAnswer(broker.joined.cluster, broker.environment.settings.store_path, leader, brokers))


async def _status(broker: Broker, id: str, url: str) -> BrokerStatus | None:
    if id == broker.joined.membership.broker:
        return BrokerStatus(broker.core.budget.tails, broker.serving.log.journal.unreleased_bytes)
    try:
        return await broker.environment.peers.call(url, "status", None, BrokerStatus, STATUS_S)
    except Unavailable:
        return None


@router.get("/healthz", **described(None, {200: Health}, shows={"status": "ok"}))
async def healthz(request: Request) -> Response:
    """The process is alive."""
    return json_answer(Health("ok"))


@router.get("/readyz", **described(None, {200: Health}, shows={"status": "ok"}))
async def readyz(request: Request) -> Response:
    """The broker can take work; else 503."""
    if broker_of(request).readiness.draining:
        raise NotReady("the broker is draining")
    return json_answer(Health("ok"))


@router.get("/metrics", **described(None, {200: {"text/plain": {"schema": {"type": "string"}}}}))
async def metrics(request: Request) -> Response:
    """Prometheus metrics."""
    return Response(render(request.app.state.broker), media_type=CONTENT_TYPE)
