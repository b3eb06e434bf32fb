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
    """Who lives, and who leads."""

    cluster: str
    leader: str | None
    brokers: list[BrokerAnswer]


class Health(Struct):
    """`status` is ok."""

    status: str


@router.get("/v1/cluster", **described(None, {200: ClusterAnswer}))
async def cluster(request: Request) -> Response:
    """The leader, the brokers and their loads."""
    broker = broker_of(request)
    leads = broker.election.is_leader
    own = BrokerAnswer(
        broker.membership.broker, broker.url, leads, broker.budget.tails, broker.journal.unreleased_bytes
    )
    return json_answer(ClusterAnswer(broker.cluster, own.id if leads else None, [own]))


@router.get("/healthz", **described(None, {200: Health}))
async def healthz(request: Request) -> Response:
    """The process is alive."""
    return json_answer(Health("ok"))


@router.get("/readyz", **described(None, {200: Health}))
async def readyz(request: Request) -> Response:
    """The broker can take work; else 503."""
    broker_of(request)
    return json_answer(Health("ok"))


@router.get("/metrics", **described(None, {200: {"text/plain": {"schema": {"type": "string"}}}}))
async def metrics(request: Request) -> Response:
    """Prometheus metrics."""
    return Response(render(request.app.state.broker), media_type=CONTENT_TYPE)
