"""Declares the streams, which are answered ahead of FastAPI, so that OpenAPI shows them; FastAPI never calls them."""

from inspect import cleandoc

from fastapi import FastAPI, Response

from seaweedq.api.access.origins import CLIENT
from seaweedq.api.openapi.document import described
from seaweedq.api.streams.subscription_stream import (
    CONSUMER_CHARACTERS,
    LARGEST_IN_FLIGHT,
    MAX_IN_FLIGHT,
    SubscriptionStreamRoute,
)
from seaweedq.api.streams.topic_stream import TopicStreamRoute
from seaweedq.api.streams.transports import MEDIA
from seaweedq.errors import RouteNotFound

TOPIC_STREAM = "/v1/topics/{topic}/stream"
SUBSCRIPTION_STREAM = "/v1/topics/{topic}/subscriptions/{subscription}/stream"
EXAMPLE = 'data: {"id":"0-17","key":"UA","value":{"carrier":"UA"},"segment":0,"offset":17}\nid: 1:0-18\n\n'


LEASED = 'id: 5f2b8a6c.1.17\ndata: {"id":"0-17","key":"UA","value":1,"segment":0,"offset":17,"attempt":1}\n\n'
LAST_ID = {
    "name": "Last-Event-ID",
    "in": "header",
    "description": "the id of the last event that the client has",
    "schema": {"type": "string"},
}


async def stream(topic: str) -> Response:
    """Never called."""
    raise RouteNotFound("answered ahead of FastAPI")


async def subscription_stream(topic: str, subscription: str) -> Response:
    """Never called."""
    raise RouteNotFound("answered ahead of FastAPI")


def declare_streams(app: FastAPI) -> None:
    """Adds the streams to the app."""
    options = described(
        None,
        {200: {MEDIA: {"schema": {"type": "string"}, "example": EXAMPLE}}},
        (400, 404, 406, 409, 410, 416),
        parameters=[
            {
                "name": "start",
                "in": "query",
                "description": "latest, earliest, a time (RFC 3339, or how long ago: 5m), or positions",
                "schema": {"type": "string", "default": "latest"},
                "example": "earliest",
            },
            {**LAST_ID, "description": "the id of the last event that the client has; instead of start"},
        ],
    )
    about = cleandoc(TopicStreamRoute.serve.__doc__ or "")
    app.add_api_route(TOPIC_STREAM, stream, methods=["GET"], tags=["read"], description=about, **options)
    _declare_subscription_stream(app)


def _declare_subscription_stream(app: FastAPI) -> None:
    in_flight = {"type": "integer", "minimum": 1, "maximum": LARGEST_IN_FLIGHT, "default": MAX_IN_FLIGHT}
    options = described(
        None,
        {200: {MEDIA: {"schema": {"type": "string"}, "example": LEASED}}},
        (400, 404, 406, 409),
        parameters=[
            {
                "name": "consumer",
                "in": "query",
                "description": "as in a pull; a stream without one is a consumer of its own",
                "schema": {"type": "string", "maxLength": CONSUMER_CHARACTERS},
            },
            {
                "name": "max_in_flight",
                "in": "query",
                "description": "so many messages of the stream may be unacked",
                "schema": in_flight,
            },
            LAST_ID,
            {
                "name": CLIENT,
                "in": "header",
                "description": "any value; needed without Authorization, as no web page sends it by itself",
                "schema": {"type": "string"},
                "example": "curl",
            },
        ],
    )
    about = cleandoc(SubscriptionStreamRoute.serve.__doc__ or "")
    told = {"tags": ["subscriptions"], "description": about, **options}
    app.add_api_route(SUBSCRIPTION_STREAM, subscription_stream, methods=["GET"], **told)
