"""The confirmation that a coordination which was restored is the one to go by."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Request, Response
from msgspec import Struct

from seaweedq.api.asgi.openapi import described, json_answer
from seaweedq.api.asgi.request_reader import RequestReader
from seaweedq.api.asgi.services import given
from seaweedq.broker.retention.restored import Restored

router = APIRouter(tags=["cluster"])


class ConfirmAnswer(Struct):
    """The number of the newest round of retention, in the store and in coordination."""

    retention_round: int


@dataclass(frozen=True)
class ConfirmServices:
    """The services of this route."""

    restored: Restored
    reader: RequestReader


Services = Annotated[ConfirmServices, given(ConfirmServices)]


@router.post(
    "/v1/cluster/confirm",
    **described(None, {200: ConfirmAnswer}, (400, 408, 413, 415), shows={"retention_round": 17}),
)
async def confirm(services: Services, request: Request) -> Response:
    """Confirms that coordination, which was restored, is the one to go by: retention takes and deletes again."""
    await services.reader.nothing(request)
    return json_answer(ConfirmAnswer(await services.restored.confirm()))
