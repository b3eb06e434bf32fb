"""The rise of the cluster's level."""

from dataclasses import dataclass
from typing import Annotated

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import UNSET, Meta, Struct, UnsetType

from seaweedq.api.asgi.services import given
from seaweedq.api.bodies.request_reader import RequestReader
from seaweedq.api.openapi.document import Takes, described, json_answer
from seaweedq.broker.level_rise import LevelRise

MAX_LEVEL = 1_000_000
router = APIRouter(tags=["cluster"])


class LevelRequest(Struct, forbid_unknown_fields=True):
    """The level to which the cluster is to rise; by default the highest one that one of its brokers reads."""

    level: Annotated[int, Meta(ge=1, le=MAX_LEVEL)] | UnsetType = UNSET


class LevelAnswer(Struct):
    """The cluster's level, which all brokers read, and which is written."""

    level: int


_LEVEL = msgspec.json.Decoder(LevelRequest)


@dataclass(frozen=True)
class LevelServices:
    """The services of this route."""

    rise: LevelRise
    reader: RequestReader


Services = Annotated[LevelServices, given(LevelServices)]


@router.post(
    "/v1/cluster/level",
    **described(Takes(LevelRequest, {"level": 2}), {200: LevelAnswer}, (400, 408, 409, 413, 415), shows={"level": 2}),
)
async def raise_level(services: Services, request: Request) -> Response:
    """Raises the cluster's level, and answers once its forms are written. It never falls: brokers that do not read it
    can join no more."""
    wanted = await services.reader.json(request, _LEVEL)
    to = None if wanted.level is UNSET else wanted.level
    return json_answer(LevelAnswer((await services.rise.rise(to)).level))
