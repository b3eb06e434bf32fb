"""Declares the routes that are answered ahead of FastAPI, so that OpenAPI shows them; FastAPI never calls them."""

from collections.abc import Callable
from inspect import cleandoc
from typing import Any

from fastapi import FastAPI, Response

from seaweedq.api.handlers import fetch, publish, uploads
from seaweedq.api.handlers.acks import (
    AckAnswer,
    AckRequest,
    Acks,
    ExtendAnswer,
    ExtendRequest,
    NackAnswer,
    NackRequest,
)
from seaweedq.api.handlers.publish import Publish, PublishAnswer
from seaweedq.api.handlers.pulls import PullAnswer, PullRequest, Pulls
from seaweedq.api.handlers.uploads import GET_REFUSES, PUT_REFUSES, Received, UploadContent
from seaweedq.api.openapi.document import Takes, described, schema_ref
from seaweedq.codec.bodies import ARROW, JSON
from seaweedq.errors import RouteNotFound

MESSAGES = "/v1/topics/{topic}/messages"
PULL = "/v1/topics/{topic}/subscriptions/{subscription}/pull"
ACK = "/v1/topics/{topic}/subscriptions/{subscription}/ack"
NACK = "/v1/topics/{topic}/subscriptions/{subscription}/nack"
EXTEND = "/v1/topics/{topic}/subscriptions/{subscription}/extend"
CONTENT = uploads.ONE + "/content"
_REFUSES = (400, 404, 408, 409, 413, 415)


async def messages(topic: str) -> Response:
    """Never called."""
    raise RouteNotFound("answered ahead of FastAPI")


async def pull(topic: str, subscription: str) -> Response:
    """Never called."""
    raise RouteNotFound("answered ahead of FastAPI")


async def answer(topic: str, subscription: str) -> Response:
    """Never called."""
    raise RouteNotFound("answered ahead of FastAPI")


async def content(topic: str, upload: str) -> Response:
    """Never called."""
    raise RouteNotFound("answered ahead of FastAPI")


def declare(app: FastAPI) -> None:
    """Adds the hot routes to the app."""
    publishes = described(
        Takes(publish.TAKES, required=True),
        {200: PublishAnswer},
        (*_REFUSES, 410),
        publish.PARAMETERS,
        shows={"count": 1, "segments": [{"segment": 0, "first_offset": 17, "count": 1}], "ids": ["0-17"]},
    )
    pulls = described(
        Takes(PullRequest, {"max_messages": 100, "wait_s": 0.1}),
        {200: {JSON: {"schema": schema_ref(PullAnswer)}, ARROW: {"schema": {"type": "string", "format": "binary"}}}},
        (*_REFUSES, 406, 410),
        shows={"lease": "5f2b8a6c", "messages": [{**fetch.EXAMPLE, "attempt": 1}]},
    )
    acks = described(
        Takes(AckRequest, {"ids": ["0-17", "0-18"]}, required=True),
        {200: AckAnswer},
        (*_REFUSES, 410),
        shows={"acked": 1, "late": 0, "unknown": ["0-18"]},
    )
    nacks = described(
        Takes(NackRequest, {"ids": ["0-17", "0-18"], "delay_s": 10}, required=True),
        {200: NackAnswer},
        (*_REFUSES, 410),
        shows={"nacked": 1, "late": 0, "unknown": ["0-18"]},
    )
    extends = described(
        Takes(ExtendRequest, {"ids": ["0-17", "0-18"], "ack_deadline_s": 60}, required=True),
        {200: ExtendAnswer},
        (*_REFUSES, 410),
        shows={"extended": 1, "late": 0, "unknown": ["0-18"]},
    )
    _declare_content(app)
    for path, endpoint, tag, answered_by, options in (
        (MESSAGES, messages, "publish", Publish.publish, publishes),
        (PULL, pull, "subscriptions", Pulls.pull, pulls),
        (ACK, answer, "subscriptions", Acks.ack, acks),
        (NACK, answer, "subscriptions", Acks.nack, nacks),
        (EXTEND, answer, "subscriptions", Acks.extend, extends),
    ):
        app.add_api_route(path, endpoint, methods=["POST"], tags=[tag], description=_about(answered_by), **options)


def _declare_content(app: FastAPI) -> None:
    octets = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    signed = [{"name": name, "in": "query", "schema": {"type": "string"}} for name in ("expires", "token")]
    shown = {"upload_id": uploads.SHOWN["upload_id"], "size": 73400320, "sha256": uploads.SHOWN["sha256"]}
    puts = described(Takes(octets), {201: Received}, PUT_REFUSES, signed, shows=shown)
    gets = described(None, {200: octets, 206: octets}, GET_REFUSES, signed)
    for method, status, answered_by, options in (
        ("PUT", 201, UploadContent.put, puts),
        ("GET", 200, UploadContent.get, gets),
    ):
        told = {"description": _about(answered_by), "status_code": status, **options}
        app.add_api_route(CONTENT, content, methods=[method], tags=["uploads"], **told)


def _about(answered_by: Callable[..., Any]) -> str:
    return cleandoc(answered_by.__doc__ or "")
