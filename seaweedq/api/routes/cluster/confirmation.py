"""The confirmation that a coordination which was restored is the one to go by."""

import re
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Request, Response
from msgspec import UNSET, Struct, UnsetType

from seaweedq.api.asgi.http import query
from seaweedq.api.asgi.services import given
from seaweedq.api.bodies.request_reader import RequestReader
from seaweedq.api.openapi.document import described, json_answer
from seaweedq.broker.retention.restored import BEGINNING, Place, Restored
from seaweedq.errors import InvalidRequest

router = APIRouter(tags=["cluster"])


_AFTER = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,126})/([0-9]{1,10})")
_NEXT = "flights/17"


class ConfirmAnswer(Struct, omit_defaults=True):
    """The number of the newest round of retention, in the store and in coordination. Where segments are left to look
    at, their number, and `next`, what they come `after`, are in its place."""

    retention_round: int | UnsetType = UNSET
    left: int | UnsetType = UNSET
    next: str | UnsetType = UNSET


@dataclass(frozen=True)
class ConfirmServices:
    """The services of this route."""

    restored: Restored
    reader: RequestReader


Services = Annotated[ConfirmServices, given(ConfirmServices)]


@router.post(
    "/v1/cluster/confirm",
    **described(
        None,
        {200: ConfirmAnswer},
        (400, 408, 413, 415),
        parameters=[
            {
                "name": "after",
                "in": "query",
                "description": "`next` of the answer before",
                "schema": {"type": "string", "pattern": f"^{_AFTER.pattern}$"},
            }
        ],
        shows={"retention_round": 17},
    ),
)
async def confirm(services: Services, request: Request) -> Response:
    """Confirms that coordination, which was restored, is the one to go by: retention takes and deletes again. Looks at
    1,000 segments, and says where the next request goes on."""
    await services.reader.nothing(request)
    options = query(request.scope)
    step = await services.restored.confirm(_place(options["after"]) if "after" in options else BEGINNING)
    if step.last is None:
        return json_answer(ConfirmAnswer(step.round if step.round is not None else UNSET))
    return json_answer(ConfirmAnswer(left=step.left, next="{}/{}".format(*step.last)))


def _place(text: str) -> Place:
    match = _AFTER.fullmatch(text)
    if not match:
        detail = f"after is {text[:80]!r}; it must be a topic and a segment, such as {_NEXT!r}"
        raise InvalidRequest(detail, field="after", value=text[:80])
    return match[1], int(match[2])
