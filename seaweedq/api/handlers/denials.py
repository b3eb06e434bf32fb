"""Denials: tokens and subjects of `oidc_issuer` that brokers refuse; deny, list, allow."""

from datetime import datetime
from heapq import nsmallest
from typing import Annotated, Literal

from fastapi import Response
from msgspec import UNSET, Meta, Struct, UnsetType

from seaweedq.access.rights import Action
from seaweedq.api.handlers.principals import MAX_PAGE
from seaweedq.api.handlers.tokens import MAX_S, Services
from seaweedq.api.parameters import PageToken, RequestDep, check_free_text, check_name, integer, json_answer, moment
from seaweedq.api.routes import OF_BODIES, Lead, Router
from seaweedq.api.services import body
from seaweedq.broker.access import DenialSpec
from seaweedq.coordination.records import DenialRecord

router = Router("access")


class DenialRequest(Struct, forbid_unknown_fields=True):
    """The JSON Web Tokens to deny: the token with the id `value` (`kind` is `jti`), or all tokens of the subject
    `value` (`kind` is `sub`). The audit shows the id of a token after `jwt:`. The id of a token without a `jti` is
    `sha256:` and a digest. The denial ends after `expires_s`, and otherwise when you delete the denial. The denial of a
    `jti` ends two minutes later than that: brokers accept tokens until a minute after `exp`, and clocks may differ.
    `note` is a text for people."""

    kind: Literal["jti", "sub"]
    value: Annotated[str, Meta(min_length=1, max_length=255, pattern="^[ -~]+$")]
    expires_s: Annotated[float, Meta(gt=0, le=MAX_S)] | None = None
    note: Annotated[str, Meta(max_length=200)] = ""


class DenialAnswer(Struct):
    """A denial. `issuer` is the principal that created the denial."""

    id: str
    kind: Literal["jti", "sub"]
    value: str
    issuer: str
    note: str
    created_at: datetime
    expires_at: datetime | None


class DenialList(Struct, omit_defaults=True):
    """One page of denials. `next_page_token` is present if more follow."""

    denials: list[DenialAnswer]
    next_page_token: str | UnsetType = UNSET


_EXAMPLE = {"kind": "sub", "value": "alice", "note": "left the company"}
_SHOWN = {
    "id": "sub-2bd806c97f0e00af1a1fc3328fa763a9",
    **_EXAMPLE,
    "issuer": "admin",
    "created_at": "2026-01-31T12:00:00Z",
    "expires_at": None,
}


@router.route(
    "GET",
    "/v1/denials",
    Action.ACCESS,
    "listDenials",
    "List denials",
    answers={200: DenialList},
    refuses=(400,),
    shows={"denials": [_SHOWN]},
)
async def list_denials(
    services: Services,
    size: Annotated[int, integer("page_size", 1, MAX_PAGE, "maximum number of denials", MAX_PAGE)],
    after: PageToken,
) -> Response:
    """Lists denials, sorted by id, page by page."""
    every = services.principals.view.denials
    wanted = nsmallest(size + 1, (one for one in every if one > (after or "")))
    page = DenialList([_answer(one, every[one]) for one in wanted[:size]])
    if len(wanted) > size:
        page.next_page_token = wanted[size - 1]
    return json_answer(page)


@router.route(
    "POST",
    "/v1/denials",
    Action.ACCESS,
    "createDenial",
    "Deny JSON Web Tokens by their id or subject",
    answers={201: DenialAnswer},
    refuses=(*OF_BODIES, 409),
    shows=_SHOWN,
    leads=(Lead(("deleteDenial",), {"denial": "$response.body#/id"}),),
)
async def create_denial(
    services: Services, request: RequestDep, wanted: Annotated[DenialRequest, body(DenialRequest, _EXAMPLE)]
) -> Response:
    """Denies one JSON Web Token of `oidc_issuer`, or all tokens of a subject, on all brokers within a second. The
    brokers also end waiting requests and streams that use these tokens. A denial of the same value replaces the earlier
    denial. A cluster may have at most 10,000 denials."""
    check_free_text(wanted.note, "note")
    lasts_us = None if wanted.expires_s is None else int(wanted.expires_s * 1e6)
    spec = DenialSpec(wanted.kind, wanted.value, lasts_us, wanted.note)
    return json_answer(_answer(*await services.principals.deny(request.caller, spec)), 201)


@router.route(
    "DELETE",
    "/v1/denials/{denial}",
    Action.ACCESS,
    "deleteDenial",
    "Delete a denial",
    answers={204: None},
    refuses=(404,),
)
async def delete_denial(services: Services, denial: str) -> Response:
    """Deletes a denial. The tokens are valid again until they expire."""
    await services.principals.allow(check_name(denial, "denial"))
    return Response(status_code=204)


def _answer(name: str, record: DenialRecord) -> DenialAnswer:
    expires_at = None if record.expires_us is None else moment(record.expires_us)
    return DenialAnswer(
        name, record.kind, record.value, record.issuer, record.note, moment(record.created_us), expires_at
    )
