"""Declares the streams, which are answered ahead of FastAPI, so that OpenAPI shows them; FastAPI never calls them."""

from inspect import cleandoc

from fastapi import FastAPI, Request, Response

from seaweedq.api.asgi.openapi import described
from seaweedq.api.streams.sse import MEDIA
from seaweedq.api.streams.topic_stream import TopicStreamRoute
from seaweedq.errors import RouteNotFound

TOPIC_STREAM = "/v1/topics/{topic}/stream"
EXAMPLE = 'data: {"id":"0-17","key":"UA","value":{"carrier":"UA"},"segment":0,"offset":17}\nid: 1:0-18\n\n'


async def stream(request: Request, topic: str) -> Response:
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
                "description": "latest, earliest, a time (RFC 3339), or positions",
                "schema": {"type": "string", "default": "latest"},
                "example": "earliest",
            },
            {
                "name": "Last-Event-ID",
                "in": "header",
                "description": "the id of the last event that the client has; instead of start",
                "schema": {"type": "string"},
            },
        ],
    )
    about = cleandoc(TopicStreamRoute.serve.__doc__ or "")
    app.add_api_route(TOPIC_STREAM, stream, methods=["GET"], tags=["read"], description=about, **options)
