"""Topics: create, list, show, change, delete, flush."""

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import UNSET, Struct, UnsetType

from seaweedq.access.actions import Action, Resource
from seaweedq.access.authorizer import judge
from seaweedq.access.limits import OF_TOPICS
from seaweedq.api.access.callers import caller_of
from seaweedq.api.access.rates import spend
from seaweedq.api.asgi.http import query
from seaweedq.api.asgi.parameters import check_name, truth, whole_number
from seaweedq.api.asgi.services import given
from seaweedq.api.asgi.shown_values import moment
from seaweedq.api.bodies.request_reader import RequestReader
from seaweedq.api.openapi.document import Takes, described, integer, json_answer, schema_ref
from seaweedq.api.routes.topics.config import (
    ChangeRequest,
    TopicRequest,
    changed_config,
    compare,
    lines_of,
    new_config,
    shown_topic_limits,
)
from seaweedq.api.routes.topics.retention_policy import PreviewAnswer, RetentionAnswer, preview_answer, shown_retention
from seaweedq.balancer.policy import ScalingPolicy
from seaweedq.broker.cluster_level import ClusterLevel
from seaweedq.broker.load.meters import policy_of
from seaweedq.broker.read.topic_positions import TopicPositions
from seaweedq.broker.retention.files import TopicFiles
from seaweedq.broker.topic_deletion import TopicDeletion
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.broker.topics.topic_admin import TopicAdmin
from seaweedq.codec.bodies import JSON
from seaweedq.coordination.records.access import ACCESS_LEVEL
from seaweedq.coordination.records.topics import BARE_LEVEL, RETENTION_LEVEL, FlushPolicy, RetentionPolicy, TopicConfig
from seaweedq.errors import InvalidRequest, SegmentNotFound, TopicBeingDeleted, TopicNotFound

router = APIRouter(tags=["topics"])
MAX_PAGE = 1000
TRIES = 3  # of a PUT whose topic is deleted meanwhile


class TopicAnswer(Struct):
    """A topic. `scaling` is the policy that holds, with its defaults. `segments` counts those that receive messages;
    `hot_segments` have too much load, most of it from one key, so that they are not split. `messages` counts all
    acknowledged messages. `bytes` are those of its files, as stored; `tail_bytes` those of what is in no file yet, as
    in memory: a flush makes fewer of them. `start_offsets` has the segments of which
    retention has removed messages: those below. `newest_file_at` is when its newest file was written, null without
    any."""

    name: str
    state: str
    format: str
    schema: dict[str, Any] | None
    key_field: str | None
    initial_segments: int
    scaling: ScalingPolicy
    flush: FlushPolicy
    retention: RetentionAnswer
    max_payload_bytes: int | None
    ndjson: Literal["envelope", "bare"]
    limits: dict[str, float | None]
    created_at: datetime
    segments: int
    hot_segments: list[int]
    messages: int
    bytes: int
    tail_bytes: int
    start_offsets: dict[int, int]
    newest_file_at: datetime | None
    path: str
    store_endpoint: str | None


class TopicSummary(Struct):
    """A topic in a list."""

    name: str
    state: str
    format: str
    created_at: datetime


class TopicList(Struct, omit_defaults=True):
    """One page; `next_page_token` is there if more topics follow, `unreadable` if topics of this page need a newer
    broker: it has their names."""

    topics: list[TopicSummary]
    unreadable: list[str] | UnsetType = UNSET
    next_page_token: str | UnsetType = UNSET


class FlushAnswer(Struct):
    """All messages that were acknowledged before the call are in files."""

    flushed: bool


_TOPIC = msgspec.json.Decoder(TopicRequest)
_CHANGE = msgspec.json.Decoder(ChangeRequest)
_EXAMPLE = {"format": "json", "key_field": "carrier", "initial_segments": 4}
_SHOWN = {
    "name": "flights",
    "state": "active",
    **_EXAMPLE,
    "schema": None,
    "scaling": msgspec.to_builtins(ScalingPolicy(min_segments=4)),
    "flush": {"max_bytes": None, "min_bytes": None, "max_age_s": 60.0},
    "retention": msgspec.to_builtins(shown_retention(RetentionPolicy())),
    "max_payload_bytes": None,
    "limits": dict.fromkeys(OF_TOPICS),
    "created_at": "2026-01-31T12:00:00Z",
    "segments": 4,
    "hot_segments": [],
    "messages": 18,
    "bytes": 936,
    "tail_bytes": 0,
    "start_offsets": {},
    "newest_file_at": "2026-01-31T12:01:00Z",
    "path": "file:///var/lib/seaweedq/store/topics/flights",
    "store_endpoint": None,
}
_DRY_RUN = {
    "name": "dry_run",
    "in": "query",
    "description": "true: change nothing, and say what the retention would take now",
    "schema": {"type": "boolean", "default": False},
}
_LISTED = {name: _SHOWN[name] for name in ("name", "state", "format", "created_at")}


@dataclass(frozen=True)
class TopicServices:
    """The services of these routes."""

    catalog: Catalog
    admin: TopicAdmin
    positions: TopicPositions
    deletion: TopicDeletion
    reader: RequestReader
    level: ClusterLevel
    files: TopicFiles

    def check_level(self, before: TopicConfig, after: TopicConfig) -> None:
        """Raises NeedsLevel where a change sets what the cluster's level does not have yet."""
        if after.retention != before.retention and after.retention.takes:
            self.level.require(RETENTION_LEVEL, "retention")
        if after.lines_are_bare and not before.lines_are_bare:
            self.level.require(BARE_LEVEL, "ndjson")
        if after.limits and after.limits != before.limits:
            self.level.require(ACCESS_LEVEL, "limits of a topic")


Services = Annotated[TopicServices, given(TopicServices)]


@router.put(
    "/v1/topics/{topic}",
    **described(
        Takes(TopicRequest, _EXAMPLE),
        {201: TopicAnswer, 200: TopicAnswer},
        (400, 408, 409, 413, 415),
        shows=_SHOWN,
    ),
)
async def create_topic(services: Services, request: Request, topic: str) -> Response:
    """Creates a topic (201), or checks that it exists with the fields that the request names (200, else 409)."""
    check_name(topic)
    wanted = await services.reader.json(request, _TOPIC, free_form=True)
    for _ in range(TRIES):
        with suppress(TopicNotFound, SegmentNotFound):  # it was deleted meanwhile
            answer = await _ensured(services, topic, wanted, caller_of(request.scope).uid)
            if answer.status_code == 201:
                spend(request.scope, "changes", new_config(wanted).initial_segments - 1)
            return answer
    raise TopicBeingDeleted(
        f"topic {topic!r} is being deleted concurrently; gave up after {TRIES} attempts", topic=topic
    )


async def _ensured(services: TopicServices, topic: str, wanted: TopicRequest, creator: str | None) -> Response:
    created = False
    await services.catalog.look(topic)
    if services.catalog.find(topic) is None:
        services.check_level(TopicConfig(), new_config(wanted))
        created = await services.admin.create(topic, new_config(wanted), creator)
    found = services.catalog.topic(topic)
    if not created:
        compare(found, wanted)
    return json_answer(await _answer(services, found, fresh=created), 201 if created else 200)


@router.get(
    "/v1/topics",
    **described(
        None,
        {200: TopicList},
        (400,),
        parameters=[
            integer("page_size", MAX_PAGE, 1, MAX_PAGE, "topics in an answer"),
            {"name": "page_token", "in": "query", "description": "from the page before", "schema": {"type": "string"}},
        ],
        shows={"topics": [_LISTED], "next_page_token": "flights"},
    ),
)
async def list_topics(services: Services, request: Request) -> Response:
    """Lists the topics that the caller may describe by name, a page at a time."""
    options = query(request.scope)
    size = whole_number(options.get("page_size", str(MAX_PAGE)), "page_size", 1, MAX_PAGE)
    unreadable = services.catalog.unreadable_names()
    every = sorted([*services.catalog.names(), *unreadable])
    caller, after = caller_of(request.scope), options.get("page_token", "")
    names = [name for name in every if name > after and judge(caller, Action.DESCRIBE, Resource(name))]
    records = [(name, found.record) for name in names[:size] if (found := services.catalog.find(name))]
    page = TopicList([TopicSummary(n, r.state, r.config.format, moment(r.created_us)) for n, r in records])
    if left_out := sorted({*names[:size]} & {*unreadable}):
        page.unreadable = left_out
    if len(names) > size:
        page.next_page_token = names[size - 1]
    return json_answer(page)


@router.get("/v1/topics/{topic}", **described(None, {200: TopicAnswer}, (404, 409), shows=_SHOWN))
async def show_topic(services: Services, topic: str) -> Response:
    """Returns a topic with its configuration, counts, bytes and store path."""
    return json_answer(await _answer(services, await services.catalog.known(check_name(topic))))


@router.patch(
    "/v1/topics/{topic}",
    **described(
        Takes(ChangeRequest, {"flush": {"max_age_s": 60}}),
        {200: {JSON: {"schema": {"anyOf": [schema_ref(TopicAnswer), schema_ref(PreviewAnswer)]}}}},
        (400, 404, 408, 409, 413, 415),
        parameters=[_DRY_RUN],
        shows=_SHOWN,
    ),
)
async def change_topic(services: Services, request: Request, topic: str) -> Response:
    """Changes flush, retention, scaling, limits, the largest payload or the meaning of lines of NDJSON. Only named
    fields change; null restores a default. With `dry_run`, changes nothing, and returns what the retention would take
    now: then `retention` alone may be named."""
    check_name(topic)
    dry_run = truth(query(request.scope).get("dry_run", "false"), "dry_run")
    wanted = await services.reader.json(request, _CHANGE)
    found = await services.catalog.known(topic)
    if dry_run:
        _check_dry_run(wanted)
        return json_answer(await _previewed(services, found, changed_config(found.record.config, wanted).retention))
    while True:
        config = changed_config(found.record.config, wanted)
        services.check_level(found.record.config, config)
        if await services.admin.change(found, config):
            return json_answer(await _answer(services, found))
        found = services.catalog.topic(topic)


def _check_dry_run(wanted: ChangeRequest) -> None:
    """Raises InvalidRequest where a request names more than the preview counts."""
    others = [name for name in wanted.__struct_fields__ if name != "retention" and getattr(wanted, name) is not UNSET]
    if others:
        named = ", ".join(others)
        raise InvalidRequest(f"dry_run counts what retention takes, and nothing of {named}", field=others[0])


async def _previewed(services: TopicServices, topic: Topic, policy: RetentionPolicy) -> PreviewAnswer:
    flushed = {number: one.flushed for number, one in (await services.positions.positions(topic)).items()}
    return preview_answer(await services.files.preview(topic, policy, flushed, services.reader.clock.now_us()))


@router.delete("/v1/topics/{topic}", status_code=204, **described(None, {204: None}, (404, 409)))
async def delete_topic(services: Services, request: Request, topic: str) -> Response:
    """Deletes a topic with its data, and answers once all of it is gone. A deletion that failed half way goes on."""
    found = services.catalog.find(check_name(topic)) or await services.catalog.known(topic)
    spend(request.scope, "changes", max(0, len(services.catalog.segments(found)) - 1))
    await services.deletion.delete(found)
    return Response(status_code=204)


@router.post(
    "/v1/topics/{topic}/flush",
    **described(None, {200: FlushAnswer}, (400, 404, 408, 409, 413, 415), shows={"flushed": True}),
)
async def flush_topic(services: Services, request: Request, topic: str) -> Response:
    """Writes all messages that were acknowledged before the call to files."""
    check_name(topic)
    await services.reader.nothing(request)
    found = await services.catalog.known(topic)
    await services.positions.positions(found, flush=True)
    services.catalog.check_whole(found)
    return json_answer(FlushAnswer(True))


async def _answer(services: TopicServices, topic: Topic, fresh: bool = False) -> TopicAnswer:
    """Returns the topic. The owners of a `fresh` one are not asked: each segment would be opened for it, by a request
    to the store."""
    config, settings = topic.record.config, services.reader.settings
    positions = () if fresh else (await services.positions.positions(topic, sizes=True)).values()
    written = [position.file_us for position in positions if position.file_us is not None]
    return TopicAnswer(
        name=topic.name,
        state=topic.record.state,
        format=config.format,
        schema=config.schema,
        key_field=config.key_field,
        initial_segments=config.initial_segments,
        scaling=policy_of(topic),
        flush=config.flush,
        retention=shown_retention(config.retention),
        max_payload_bytes=config.max_payload_bytes,
        ndjson=lines_of(config),
        limits=shown_topic_limits(config),
        created_at=moment(topic.record.created_us),
        segments=sum(record.state == "open" for record in services.catalog.segments(topic).values()),
        hot_segments=[position.segment for position in positions if position.observed and position.observed.hot_key],
        messages=sum(position.end for position in positions),
        bytes=sum(position.size_bytes for position in positions),
        tail_bytes=sum(position.tail_bytes for position in positions),
        start_offsets=services.catalog.start_offsets(topic),
        newest_file_at=moment(max(written)) if written else None,
        path=f"{settings.store_path}/topics/{topic.name}",
        store_endpoint=settings.s3_endpoints.partition(",")[0].strip() or None,
    )
