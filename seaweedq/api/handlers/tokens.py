"""Tokens: issue, list, show, revoke. A caller without the right `access` can see and revoke only its own token, and the
tokens issued from it."""

from dataclasses import dataclass
from datetime import datetime
from heapq import nsmallest
from typing import Annotated, Self

import msgspec
from fastapi import Response
from msgspec import UNSET, Meta, Struct, UnsetType

from seaweedq.api.connections.request_reader import RequestReader
from seaweedq.api.handlers.principals import MAX_PAGE, GrantRequest, Grants, PrincipalServices, grants_of, shown_grants
from seaweedq.api.parameters import (
    PageToken,
    RequestDep,
    check_free_text,
    check_name,
    integer,
    json_answer,
    moment,
    query,
)
from seaweedq.api.routes import KNOWN, OF_BODIES, Lead, Router
from seaweedq.api.services import Parts, body, given
from seaweedq.broker.access import Principals, TokenSpec
from seaweedq.coordination.records import TokenRecord
from seaweedq.errors import PrincipalNotFound, TokenNotFound

MAX_S = 100 * 365 * 86_400
NO_STORE = {"cache-control": "no-store"}
router = Router("access")


class TokenRequest(Struct, forbid_unknown_fields=True):
    """The token to issue. Without `principal`, the new token is derived from the caller's: it can do no more than the
    caller's token, and expires no later. With `principal`, the new token belongs to that principal, and the caller
    needs the right `access`. `grants` narrow the token further. The token expires after `expires_s`. `note` is a text
    for people, and must not contain control characters or text-direction marks."""

    principal: str | None = None
    expires_s: Annotated[float, Meta(gt=0, le=MAX_S)] | None = None
    grants: Grants | None = None
    note: Annotated[str, Meta(max_length=200)] = ""


class TokenAnswer(Struct):
    """A token, without its text. If `issued_from` names another token, this token becomes invalid when that token
    becomes invalid. `grants`, if present, narrow the principal's grants. `counts` is true if the token is valid now."""

    id: str
    principal: str
    issuer: str
    issued_from: str | None
    grants: list[GrantRequest] | None
    note: str
    created_at: datetime
    expires_at: datetime | None
    counts: bool


class NewToken(TokenAnswer):
    """A new token with its text, which is shown only once."""

    token: str


class TokenList(Struct, omit_defaults=True):
    """One page of tokens. `next_page_token` is present if more follow."""

    tokens: list[TokenAnswer]
    next_page_token: str | UnsetType = UNSET


_SHOWN = {
    "id": "5f2b8a6c90d1e2f3",
    "principal": "importer",
    "issuer": "admin",
    "issued_from": None,
    "grants": None,
    "note": "nightly run",
    "created_at": "2026-01-31T12:00:00Z",
    "expires_at": "2026-03-02T12:00:00Z",
    "counts": True,
}
_EXAMPLE = {"principal": "importer", "expires_s": 2592000, "note": "nightly run"}


@dataclass(frozen=True)
class TokenServices:
    """The services of these routes."""

    principals: Principals
    reader: RequestReader

    @classmethod
    def of(cls, parts: Parts) -> Self:
        return cls(parts.get(PrincipalServices).principals, parts.reader)

    def answer(self, token: str, record: TokenRecord) -> TokenAnswer:
        """Converts a token for answers."""
        now_us, caller = self.reader.clock.now_us(), self.principals.view.caller(token)
        return TokenAnswer(
            token,
            record.principal,
            record.issuer,
            record.parent,
            None if record.grants is None else shown_grants(record.grants),
            record.note,
            moment(record.created_us),
            None if record.expires_us is None else moment(record.expires_us),
            caller is not None and caller.expires_us > now_us,
        )


Services = Annotated[TokenServices, given(TokenServices)]


@router.route(
    "GET",
    "/v1/tokens",
    KNOWN,
    "listTokens",
    "List tokens",
    answers={200: TokenList},
    refuses=(400,),
    shows={"tokens": [_SHOWN]},
)
async def list_tokens(
    services: Services,
    request: RequestDep,
    size: Annotated[int, integer("page_size", 1, MAX_PAGE, "maximum number of tokens", MAX_PAGE)],
    after: PageToken,
    principal: Annotated[str | None, query("principal", "only the tokens of this principal", {"type": "string"})],
) -> Response:
    """Lists tokens, sorted by id, page by page. Callers with the right `access` see all tokens; others see their own
    token and the tokens issued from it."""
    every, visible = services.principals.view.tokens, services.principals.visible(request.caller, principal)
    wanted = nsmallest(size + 1, (one for one in visible if one > (after or "")))
    page = TokenList([services.answer(one, every[one]) for one in wanted[:size]])
    if len(wanted) > size:
        page.next_page_token = wanted[size - 1]
    return json_answer(page)


@router.route(
    "POST",
    "/v1/tokens",
    KNOWN,
    "createToken",
    "Issue a token",
    answers={201: NewToken},
    refuses=(*OF_BODIES, 409, PrincipalNotFound),
    shows={**_SHOWN, "token": "sq1_5f2b8a6c90d1e2f3_..."},
    leads=(Lead(("getToken", "revokeToken"), {"token": "$response.body#/id"}),),
)
async def create_token(
    services: Services, request: RequestDep, wanted: Annotated[TokenRequest, body(TokenRequest, _EXAMPLE)]
) -> Response:
    """Issues a token. Only this answer contains the token's text: the cluster stores only its SHA-256. All brokers
    accept the token within a second.

    A principal may issue at most 100 tokens from its own tokens, and have at most 10,000 tokens. A cluster may have at
    most 100,000 tokens.
    """
    if wanted.principal is not None:
        check_name(wanted.principal, "principal")
    check_free_text(wanted.note, "note")
    lasts_us = None if wanted.expires_s is None else int(wanted.expires_s * 1e6)
    grants = None if wanted.grants is None else grants_of(wanted.grants)
    issued = await services.principals.issue(request.caller, TokenSpec(wanted.principal, lasts_us, grants, wanted.note))
    request.issued = issued.id
    shown = msgspec.structs.asdict(services.answer(issued.id, issued.record))
    answer = json_answer(NewToken(**shown, token=issued.text), 201)
    answer.headers.update(NO_STORE)
    return answer


@router.route(
    "GET",
    "/v1/tokens/{token}",
    KNOWN,
    "getToken",
    "Get a token",
    answers={200: TokenAnswer},
    refuses=(404,),
    shows=_SHOWN,
)
async def show_token(services: Services, request: RequestDep, token: str) -> Response:
    """Returns a token, without its text. Without the right `access`, a caller gets 403 for every token except its own
    and those issued from it."""
    services.principals.check_seen(request.caller, token)
    found = services.principals.view.tokens.get(token)
    if found is None:
        raise TokenNotFound(f"there is no token {token[:100]!r}", token=token[:100])
    return json_answer(services.answer(token, found))


@router.route(
    "DELETE", "/v1/tokens/{token}", KNOWN, "revokeToken", "Revoke a token", answers={204: None}, refuses=(404,)
)
async def revoke_token(services: Services, request: RequestDep, token: str) -> Response:
    """Revokes a token and all tokens issued from it, on all brokers within a second. The broker also ends waiting
    requests and streams that use these tokens."""
    services.principals.check_seen(request.caller, token)
    await services.principals.revoke(request.caller, check_name(token, "token"))
    return Response(status_code=204)
