"""The names of the subscriptions of all topics. Nothing is measured, and no dispatcher is asked: that is for those whom
a caller picks of them."""

from fastapi import APIRouter, Request, Response
from msgspec import UNSET, Struct, UnsetType

from seaweedq.access.actions import Action, Resource
from seaweedq.access.authorizer import judge
from seaweedq.api.access.callers import caller_of
from seaweedq.api.asgi.http import query
from seaweedq.api.asgi.parameters import whole_number
from seaweedq.api.openapi.document import described, integer, json_answer
from seaweedq.api.routes.access.principals import MAX_PAGE, PAGES
from seaweedq.api.routes.subscriptions.subscriptions import Services
from seaweedq.broker.subscriptions.admin import Listed
from seaweedq.broker.topics.catalog import Catalog
from seaweedq.coordination import keys
from seaweedq.errors import InvalidRequest

router = APIRouter(tags=["subscriptions"])


class SubscriptionName(Struct):
    """A subscription in a list of several topics."""

    topic: str
    name: str


class SubscriptionNames(Struct, omit_defaults=True):
    """One page; `next_page_token` is there if more follow, `unreadable` if some of this page need a newer broker."""

    subscriptions: list[SubscriptionName]
    unreadable: list[SubscriptionName] | UnsetType = UNSET
    next_page_token: str | UnsetType = UNSET


@router.get(
    "/v1/subscriptions",
    **described(
        None,
        {200: SubscriptionNames},
        (400,),
        parameters=[integer("page_size", MAX_PAGE, 1, MAX_PAGE, "subscriptions in an answer"), PAGES],
        shows={"subscriptions": [{"topic": "flights", "name": "billing"}], "next_page_token": "flights/1/billing"},
    ),
)
async def list_all_subscriptions(services: Services, request: Request) -> Response:
    """Lists the names of those subscriptions of all topics that the caller may describe, a page at a time."""
    options = query(request.scope)
    size = whole_number(options.get("page_size", str(MAX_PAGE)), "page_size", 1, MAX_PAGE)
    after = _place(options["page_token"]) if "page_token" in options else None
    caller, found, more = caller_of(request.scope), list[Listed](), False
    async for one in services.admin.every(after):
        if judge(caller, Action.DESCRIBE, Resource(one.topic, one.name)) and _is_there(services.catalog, one):
            if more := len(found) == size:
                break
            found.append(one)
    page = SubscriptionNames([_name(one) for one in found if one.is_readable])
    if unreadable := [_name(one) for one in found if not one.is_readable]:
        page.unreadable = unreadable
    if more:
        page.next_page_token = f"{found[-1].topic}/{found[-1].incarnation}/{found[-1].name}"
    return json_answer(page)


def _is_there(catalog: Catalog, one: Listed) -> bool:
    """Returns whether the topic of a subscription is there, and not only another one of its name."""
    topic = catalog.find(one.topic)
    return topic is not None and topic.record.incarnation == one.incarnation


def _name(one: Listed) -> SubscriptionName:
    return SubscriptionName(one.topic, one.name)


def _place(text: str) -> tuple[str, int, str]:
    """Returns the place of a page token. Raises InvalidRequest."""
    topic, _, rest = text.partition("/")
    incarnation, _, name = rest.partition("/")
    try:
        place = topic, int(incarnation), name
        keys.SUBSCRIPTIONS.key(*place)
    except ValueError:
        raise InvalidRequest(f"page_token is {text[:100]!r}, not one of a page before", field="page_token") from None
    return place
