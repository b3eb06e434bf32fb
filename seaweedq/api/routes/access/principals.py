"""Principals: create or replace, show, list, delete. All of it needs the right to access."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import UNSET, Struct, UnsetType, field

from seaweedq.access.caller import DEFAULT
from seaweedq.api.asgi.http import query
from seaweedq.api.asgi.parameters import check_name, whole_number
from seaweedq.api.asgi.services import given
from seaweedq.api.asgi.shown_values import moment
from seaweedq.api.bodies.request_reader import RequestReader
from seaweedq.api.openapi.document import Takes, described, integer, json_answer
from seaweedq.api.routes.access.grants_and_limits import (
    GrantRequest,
    Grants,
    LimitsRequest,
    grants_of,
    limits_of,
    shown_grants,
    shown_limits,
)
from seaweedq.broker.access.principals import Principals
from seaweedq.coordination.records.access import PrincipalRecord
from seaweedq.errors import PrincipalNotFound

PATH = "/v1/principals/{principal}"
MAX_PAGE = 1000
PAGES = {"name": "page_token", "in": "query", "description": "from the page before", "schema": {"type": "string"}}
router = APIRouter(tags=["access"])


class PrincipalRequest(Struct, forbid_unknown_fields=True):
    """The rights and the limits of a principal: all of them, as they are to be."""

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
    """One page; `next_page_token` is there if more follow."""

    principals: list[PrincipalAnswer]
    next_page_token: str | UnsetType = UNSET


_PRINCIPAL = msgspec.json.Decoder(PrincipalRequest)
_EXAMPLE = {"grants": [{"actions": ["describe", "publish"], "topics": ["flights*"]}]}
_SHOWN = {
    "name": "importer",
    "grants": [{**_EXAMPLE["grants"][0], "subscriptions": ["*"]}],
    "limits": msgspec.to_builtins(LimitsRequest()),
    "disabled": False,
    "created_at": "2026-01-31T12:00:00Z",
}


@dataclass(frozen=True)
class PrincipalServices:
    """The services of these routes."""

    principals: Principals
    reader: RequestReader

    def find(self, name: str) -> PrincipalRecord:
        """Returns a principal. Raises PrincipalNotFound."""
        found = self.principals.view.principals.get(name)
        if found is None:
            raise PrincipalNotFound(f"there is no principal {name!r}", principal=name)
        return found


Services = Annotated[PrincipalServices, given(PrincipalServices)]


@router.put(
    PATH,
    **described(
        Takes(PrincipalRequest, _EXAMPLE),
        {201: PrincipalAnswer, 200: PrincipalAnswer},
        (400, 408, 409, 413, 415),
        shows=_SHOWN,
    ),
)
async def put_principal(services: Services, request: Request, principal: str) -> Response:
    """Creates a principal (201), or replaces all that it may do (200). Its tokens stay, and get the new rights within a
    second."""
    _check(principal)
    wanted = await services.reader.json(request, _PRINCIPAL)
    grants, limits = grants_of(wanted.grants), limits_of(wanted.limits)
    created = await services.principals.put(principal, grants, limits, wanted.disabled)
    return json_answer(_answer(principal, services.find(principal)), 201 if created else 200)


@router.get(PATH, **described(None, {200: PrincipalAnswer}, (404,), shows=_SHOWN))
async def show_principal(services: Services, principal: str) -> Response:
    """Returns a principal."""
    return json_answer(_answer(principal, services.find(_check(principal))))


@router.get(
    "/v1/principals",
    **described(
        None,
        {200: PrincipalList},
        (400,),
        parameters=[integer("page_size", MAX_PAGE, 1, MAX_PAGE, "principals in an answer"), PAGES],
        shows={"principals": [_SHOWN]},
    ),
)
async def list_principals(services: Services, request: Request) -> Response:
    """Lists the principals by name, a page at a time."""
    options = query(request.scope)
    size = whole_number(options.get("page_size", str(MAX_PAGE)), "page_size", 1, MAX_PAGE)
    every = services.principals.view.principals
    names = sorted(name for name in every if name > options.get("page_token", ""))
    page = PrincipalList([_answer(name, every[name]) for name in names[:size]])
    if len(names) > size:
        page.next_page_token = names[size - 1]
    return json_answer(page)


@router.delete(PATH, status_code=204, **described(None, {204: None}, (404,)))
async def delete_principal(services: Services, principal: str) -> Response:
    """Deletes a principal. All its tokens end with it, within a second, also if another one gets its name later."""
    await services.principals.delete(_check(principal))
    return Response(status_code=204)


def _check(name: str) -> str:
    """Returns the name, if it is valid: that of a principal, or of the limits of all. Raises InvalidName."""
    return name if name == DEFAULT else check_name(name, "principal")


def _answer(name: str, record: PrincipalRecord) -> PrincipalAnswer:
    return PrincipalAnswer(
        name, shown_grants(record.grants), shown_limits(record.limits), record.disabled, moment(record.created_us)
    )
