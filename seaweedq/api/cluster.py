"""Health, metrics and the state of the cluster."""

from fastapi import APIRouter, Request, Response
from msgspec import Struct

from seaweedq.api.metrics import CONTENT_TYPE, render
from seaweedq.api.shell import broker_of, described, json_answer

router = APIRouter(tags=["cluster"])


class BrokerAnswer(Struct):
    """A living broker and what it holds."""

    id: str
    url: str
    leader: bool
    tail_bytes: int
    unreleased_journal_bytes: int


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
            "leader": True,
            "tail_bytes": 0,
            "unreleased_journal_bytes": 0,
        }
    ],
}


@router.get("/v1/cluster", **described(None, {200: ClusterAnswer}, shows=_EXAMPLE))
async def cluster(request: Request) -> Response:
    """The leader, the brokers and their loads."""
    broker = broker_of(request)
    leads = broker.election.is_leader
    own = BrokerAnswer(
        broker.membership.broker, broker.url, leads, broker.budget.tails, broker.journal.unreleased_bytes
    )
    return json_answer(ClusterAnswer(broker.cluster, broker.settings.store_path, own.id if leads else None, [own]))


@router.get("/healthz", **described(None, {200: Health}, shows={"status": "ok"}))
async def healthz(request: Request) -> Response:
    """The process is alive."""
    return json_answer(Health("ok"))


@router.get("/readyz", **described(None, {200: Health}, shows={"status": "ok"}))
async def readyz(request: Request) -> Response:
    """The broker can take work; else 503."""
    broker_of(request)
    return json_answer(Health("ok"))


@router.get("/metrics", **described(None, {200: {"text/plain": {"schema": {"type": "string"}}}}))
async def metrics(request: Request) -> Response:
    """Prometheus metrics."""
    return Response(render(request.app.state.broker), media_type=CONTENT_TYPE)
