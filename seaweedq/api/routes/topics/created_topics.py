"""Topics that a publish or an upload creates."""

from seaweedq.access.actions import Action, Resource
from seaweedq.access.authorizer import judge
from seaweedq.api.access.audited import CREATED
from seaweedq.api.access.callers import caller_of, forbidden
from seaweedq.api.asgi.http import Scope
from seaweedq.broker.topics.catalog import Catalog
from seaweedq.broker.topics.topic_admin import TopicAdmin
from seaweedq.coordination.records.topics import TopicConfig
from seaweedq.errors import TopicNotFound


async def may_create(scope: Scope, catalog: Catalog, name: str) -> bool:
    """Returns whether a topic that is not known here is to be created. Who may not create it waits for a look whether
    another broker has just done so: then this returns False. Raises Forbidden where none has."""
    resource = Resource(name)
    if judge(caller_of(scope), Action.CREATE, resource):
        return True
    try:
        await catalog.known(name)
    except TopicNotFound:
        raise forbidden(Action.CREATE, resource) from None
    return False


async def create(scope: Scope, topics: TopicAdmin, name: str) -> None:
    """Creates a topic with the default configuration, of which the audit is told."""
    if await topics.create(name, TopicConfig(), caller_of(scope).uid):
        scope[CREATED] = name
