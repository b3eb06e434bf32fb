"""The confirmation that a coordination which was restored is the one to go by."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Response
from msgspec import Struct

from seaweedq.api.asgi.openapi import described, json_answer
from seaweedq.api.asgi.services import given
from seaweedq.broker.retention.rounds import Rounds

router = APIRouter(tags=["cluster"])


class ConfirmAnswer(Struct):
    """The number of the newest round of retention, in the store and in coordination."""

    retention_round: int


@dataclass(frozen=True)
class ConfirmServices:
    """The services of this route."""

    rounds: Rounds


Services = Annotated[ConfirmServices, given(ConfirmServices)]


@router.post("/v1/cluster/confirm", **described(None, {200: ConfirmAnswer}, shows={"retention_round": 17}))
async def confirm(services: Services) -> Response:
    """Confirms that coordination, which was restored, is the one to go by: retention takes and deletes again."""
    return json_answer(ConfirmAnswer(await services.rounds.confirm()))
