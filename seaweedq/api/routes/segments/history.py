"""The key space over time: what each segment of a topic took in the last hour, as the leader has recorded it."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import UNSET, Struct, UnsetType

from seaweedq.api.asgi.http import query
from seaweedq.api.asgi.parameters import check_name, time_us, whole_number
from seaweedq.api.asgi.services import given
from seaweedq.api.asgi.shown_values import DIGITS, moment
from seaweedq.api.openapi.document import TIME, described, integer, json_answer
from seaweedq.api.routes.segments.segment_map import HotKey
from seaweedq.balancer.history import KEPT_US
from seaweedq.balancer.history_cells import Cell
from seaweedq.broker.load.histories import FoundHistory, Histories
from seaweedq.broker.rpc.messages import HistoryCall
from seaweedq.broker.topics.catalog import Catalog
from seaweedq.clock import Clock
from seaweedq.errors import InvalidRequest

router = APIRouter(tags=["topics"])
FEWEST, CELLS, MOST = 100, 2_000, 20_000


class CellAnswer(Struct, omit_defaults=True):
    """The load of a half-open range of key hashes, from `time` on for so many `seconds`: while a segment is split or
    merged its cell ends, and those of its successors begin. `segment` is null where it is several neighbours. `hot_key`
    is there where one key had too large a share for a split to help."""

    time: datetime
    seconds: float
    low: int
    high: int
    segment: int | None
    messages_per_s: float
    bytes_per_s: float
    hot_key: HotKey | UnsetType = UNSET


class HistoryAnswer(Struct):
    """The cells of a topic in the order of time; what has no cell took nothing. The `leader` has recorded all from
    `from` to `until`: an hour at most, and less behind a change of leader."""

    since: datetime = msgspec.field(name="from")
    until: datetime
    leader: str
    cells: list[CellAnswer]


def _when(name: str, about: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": about, "schema": TIME}


_SHOWN = {
    "from": "2026-01-31T11:00:00Z",
    "until": "2026-01-31T12:00:00Z",
    "leader": "broker.1f2e",
    "cells": [
        {
            "time": "2026-01-31T11:59:50Z",
            "seconds": 10.0,
            "low": 0,
            "high": 2**31 - 1,
            "segment": 0,
            "messages_per_s": 1.8,
            "bytes_per_s": 93.6,
        }
    ],
}


@dataclass(frozen=True)
class HistoryServices:
    """The services of this route."""

    catalog: Catalog
    histories: Histories
    clock: Clock


Services = Annotated[HistoryServices, given(HistoryServices)]


@router.get(
    "/v1/topics/{topic}/history",
    **described(
        None,
        {200: HistoryAnswer},
        (400, 404, 409),
        parameters=[
            _when("since", "RFC 3339, with an offset, or how long ago: 5m; an hour before `until` by default"),
            _when("until", "RFC 3339, with an offset, or how long ago: 5m; now by default"),
            integer("cells", CELLS, FEWEST, MOST, "at most so many; they become coarser for it"),
        ],
        shows=_SHOWN,
    ),
)
async def history(services: Services, request: Request, topic: str) -> Response:
    """Returns what came into each range of key hashes in the last hour, in cells of ten seconds or longer."""
    check_name(topic)
    given_ = query(request.scope)
    now_us = services.clock.now_us()
    until_us = time_us(given_["until"], "until", now_us) if "until" in given_ else now_us
    since_us = time_us(given_["since"], "since", now_us) if "since" in given_ else until_us - KEPT_US
    if since_us >= until_us:
        end = "until" if "until" in given_ else f"now, which is {moment(now_us).isoformat()} at this broker"
        raise InvalidRequest(f"since must be before {end}", field="since", value=given_.get("since"))
    most = whole_number(given_.get("cells", str(CELLS)), "cells", FEWEST, MOST)
    found = await services.catalog.known(topic)
    call = HistoryCall(found.name, found.record.incarnation, since_us, until_us, most)
    return json_answer(_answer(await services.histories.find(call)))


def _answer(found: FoundHistory) -> HistoryAnswer:
    cells = [_cell(one) for one in found.cells]
    return HistoryAnswer(moment(found.begin_us), moment(found.end_us), found.leader, cells)


def _cell(cell: Cell) -> CellAnswer:
    seconds = max(cell.end_us - cell.begin_us, 1000) / 1e6
    return CellAnswer(
        moment(cell.begin_us),
        seconds,
        cell.low,
        cell.high,
        cell.segment,
        round(cell.messages / seconds, DIGITS),
        round(cell.size_bytes / seconds, DIGITS),
        HotKey(cell.hot_key[0], round(cell.hot_key[1], DIGITS)) if cell.hot_key else UNSET,
    )
