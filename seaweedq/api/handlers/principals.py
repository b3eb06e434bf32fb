"""Principals: their grants and limits in requests and answers; whoami; list, create, show, delete."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Self

import msgspec
from fastapi import Depends, Response
from msgspec import UNSET, Meta, Struct, UnsetType, field

from seaweedq.access.limits import Limits
from seaweedq.access.rights import ANY, DEFAULT, NEVER_US, Action, Grant, Identity
from seaweedq.api.parameters import PageToken, RequestDep, check_name, integer, json_answer, moment
from seaweedq.api.routes import KNOWN, OF_BODIES, Lead, Router
from seaweedq.api.services import Parts, body, given
from seaweedq.broker.access import InvalidGrant, Principals, check_grants
from seaweedq.coordination.records import PrincipalRecord
from seaweedq.errors import InvalidName, InvalidRequest, PrincipalNotFound

MAX_GRANTS, MAX_PATTERNS, MAX_TEXT = 100, 100, 128
Patterns = Annotated[list[Annotated[str, Meta(max_length=MAX_TEXT)]], Meta(max_length=MAX_PATTERNS)]
LEAST_RATE = 0.01  # a request in 100 s; what is lower is a mistake, or 0
Rate = Annotated[float, Meta(ge=LEAST_RATE, le=1e15)] | None
Count = Annotated[int, Meta(ge=1, le=10**9)] | None


class GrantRequest(Struct, forbid_unknown_fields=True):
    """Actions that are allowed on some topics and some of their subscriptions. A name may end in one `*`."""

    actions: Annotated[list[Action], Meta(min_length=1, max_length=len(Action))]
    topics: Patterns = []
    subscriptions: Patterns = field(default_factory=lambda: [ANY])


class LimitsRequest(Struct, forbid_unknown_fields=True):
    """Limits on a principal's use of the whole cluster; null means no limit. `requests`, `messages`, `bytes_in`,
    `bytes_out` and `changes` are rates per second.

    `messages` counts messages that requests publish, not imported rows. `changes` counts every request that changes
    something, plus each additional segment that the request creates, deletes or replaces. A single request may exceed a
    rate; later requests then wait. If the size of a request is known only after it has run, the next request waits
    instead. `bytes_out` never blocks acks. `waiting_pulls` also counts waiting reads. On a WebSocket, each message
    counts as a request. Requests with signed URLs count toward no principal's limits."""

    requests: Rate = None
    messages: Rate = None
    bytes_in: Rate = None
    bytes_out: Rate = None
    changes: Rate = None
    connections: Count = None
    waiting_pulls: Count = None
    topics: Count = None
    segments: Count = None
    open_uploads: Count = None


Grants = Annotated[list[GrantRequest], Meta(max_length=MAX_GRANTS)]


def grants_of(wanted: Sequence[GrantRequest]) -> tuple[Grant, ...]:
    """Parses the grants of a request. Raises InvalidRequest for an invalid pattern, and for an action on topics without
    topics."""
    found = tuple(Grant(tuple(one.actions), tuple(one.topics), tuple(one.subscriptions)) for one in wanted)
    try:
        check_grants(found)
    except InvalidGrant as error:
        raise InvalidRequest(f"grants: {error}", field="grants", value=error.value) from None
    return found


def shown_grants(grants: Sequence[Grant]) -> list[GrantRequest]:
    """Converts grants for answers."""
    return [GrantRequest(list(one.actions), list(one.topics), list(one.subscriptions)) for one in grants]


def limits_of(wanted: LimitsRequest) -> Limits:
    """Parses the limits of a request."""
    return Limits(**msgspec.structs.asdict(wanted))


def shown_limits(limits: Limits) -> LimitsRequest:
    """Converts limits for answers."""
    return LimitsRequest(**msgspec.structs.asdict(limits))


MAX_PAGE = 1000
router = Router("access")


class PrincipalRequest(Struct, forbid_unknown_fields=True):
    """All rights and limits of a principal; they replace the principal's current rights and limits. While a principal
    is `disabled`, none of its tokens is valid."""

    grants: Grants = []
    limits: LimitsRequest = field(default_factory=LimitsRequest)
    disabled: bool = False


class PrincipalAnswer(Struct):
    """A principal."""

    name: str
    grants: list[GrantRequest]
    limits: LimitsRequest
    disabled: bool
    created_at: datetime


class PrincipalList(Struct, omit_defaults=True):
    """One page of principals. `next_page_token` is present if more follow."""

    principals: list[PrincipalAnswer]
    next_page_token: str | UnsetType = UNSET


class CallerAnswer(Struct):
    """The caller. `principal` is null for anonymous callers; a subject of `oidc_issuer` that is not a principal is
    called `oidc:` and its `sub`. `identity` is the kind of proof: `token`, `jwt`, `certificate` or null. A request must
    be allowed by every list in `grants`: the principal's own list, and the lists that narrow the token."""

    principal: str | None
    token: str | None
    expires_at: datetime | None
    grants: list[list[GrantRequest]]
    identity: Identity | None


_EXAMPLE = {"grants": [{"actions": ["describe", "publish"], "topics": ["flights*"]}]}
_SHOWN = {
    "name": "importer",
    "grants": [{**_EXAMPLE["grants"][0], "subscriptions": ["*"]}],
    "limits": msgspec.to_builtins(LimitsRequest()),
    "disabled": False,
    "created_at": "2026-01-31T12:00:00Z",
}
_CALLER = {
    "principal": "importer",
    "token": "5f2b8a6c90d1e2f3",
    "expires_at": "2026-03-02T12:00:00Z",
    "grants": [[{"actions": ["publish"], "topics": ["flights"], "subscriptions": ["*"]}]],
    "identity": "token",
}


@dataclass(frozen=True)
class PrincipalServices:
    """The services of these routes."""

    principals: Principals

    @classmethod
    def of(cls, parts: Parts) -> Self:
        context, callers = parts.broker.context, parts.broker.callers
        return cls(Principals(context.coordination, callers.view, context.clock, context.ids, context.changes))

    def find(self, name: str) -> PrincipalRecord:
        """Returns a principal. Raises PrincipalNotFound."""
        found = self.principals.view.principals.get(name)
        if found is None:
            raise PrincipalNotFound(f"there is no principal {name!r}", principal=name)
        return found


Services = Annotated[PrincipalServices, given(PrincipalServices)]


async def _principal(principal: str) -> str:
    """Returns the name if it is valid for a principal, or is `*`. Raises InvalidName."""
    return principal if principal == DEFAULT else check_name(principal, "principal")


PathPrincipal = Annotated[str, Depends(_principal)]


@router.route(
    "GET",
    "/v1/whoami",
    KNOWN,
    "whoAmI",
    "Show the caller's principal and rights",
    answers={200: CallerAnswer},
    shows=_CALLER,
)
async def whoami(services: Services, request: RequestDep) -> Response:
    """Returns the caller's principal and permissions."""
    caller = request.caller
    expires_at = None if caller.expires_us == NEVER_US else moment(caller.expires_us)
    shown = [shown_grants(layer.grants) for layer in caller.layers]
    return json_answer(CallerAnswer(caller.principal, caller.token, expires_at, shown, caller.identity))


@router.route(
    "GET",
    "/v1/principals",
    Action.ACCESS,
    "listPrincipals",
    "List principals",
    answers={200: PrincipalList},
    refuses=(400, InvalidName),
    shows={"principals": [_SHOWN]},
    leads=(Lead(("putPrincipal",), {"principal": "importer"}),),
)
async def list_principals(
    services: Services,
    size: Annotated[int, integer("page_size", 1, MAX_PAGE, "maximum number of principals", MAX_PAGE)],
    after: PageToken,
) -> Response:
    """Lists the principals, sorted by name, page by page."""
    every = services.principals.view.principals
    names = sorted(name for name in every if name > (after or ""))
    page = PrincipalList([_answer(name, every[name]) for name in names[:size]])
    if len(names) > size:
        page.next_page_token = names[size - 1]
    return json_answer(page)


@router.route(
    "PUT",
    "/v1/principals/{principal}",
    Action.ACCESS,
    "putPrincipal",
    "Create or change a principal",
    answers={201: PrincipalAnswer, 200: PrincipalAnswer},
    refuses=(*OF_BODIES, 409),
    shows=_SHOWN,
    leads=(
        Lead(("getPrincipal", "deletePrincipal"), {"principal": "$request.path.principal"}),
        Lead(("createToken",), {}, {"principal": "$request.path.principal"}),
    ),
)
async def put_principal(
    services: Services, principal: PathPrincipal, wanted: Annotated[PrincipalRequest, body(PrincipalRequest, _EXAMPLE)]
) -> Response:
    """Creates a principal (201), or replaces all its rights and limits (200). The principal's tokens remain valid, and
    have the new rights within a second.

    If two requests write the same principal, the last one wins. Each limit of the principal `*` applies to every
    principal for which this limit is not set. The principal `*` has no grants."""
    grants, limits = grants_of(wanted.grants), limits_of(wanted.limits)
    created = await services.principals.put(principal, grants, limits, wanted.disabled)
    return json_answer(_answer(principal, services.find(principal)), 201 if created else 200)


@router.route(
    "GET",
    "/v1/principals/{principal}",
    Action.ACCESS,
    "getPrincipal",
    "Get a principal",
    answers={200: PrincipalAnswer},
    refuses=(404,),
    shows=_SHOWN,
)
async def show_principal(services: Services, principal: PathPrincipal) -> Response:
    """Returns a principal."""
    return json_answer(_answer(principal, services.find(principal)))


@router.route(
    "DELETE",
    "/v1/principals/{principal}",
    Action.ACCESS,
    "deletePrincipal",
    "Delete a principal",
    answers={204: None},
    refuses=(404,),
)
async def delete_principal(services: Services, principal: PathPrincipal) -> Response:
    """Deletes a principal. All tokens of the principal become invalid within a second, and stay invalid if a new
    principal gets the same name."""
    await services.principals.delete(principal)
    return Response(status_code=204)


def _answer(name: str, record: PrincipalRecord) -> PrincipalAnswer:
    return PrincipalAnswer(
        name, shown_grants(record.grants), shown_limits(record.limits), record.disabled, moment(record.created_us)
    )
