"""The topic for dead letters: it has the format of the source topic, and is created where it does not exist.

It is created before a subscription that names it, and again when a message dies after somebody has deleted it: else
the message would stay in the subscription for ever. A crash in between leaves an empty topic.
"""

from seaweedq.access.rights import Action, Caller, Resource, judge
from seaweedq.broker.access.callers import Callers
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.broker.topics.topic_admin import TopicAdmin
from seaweedq.coordination.records import SubscriptionRecord, TopicConfig
from seaweedq.errors import Forbidden, InvalidRequest


class DeadLetterTopics:
    """Finds and creates the topics for dead letters."""

    def __init__(self, catalog: Catalog, admin: TopicAdmin, callers: Callers) -> None:
        self._catalog = catalog
        self._admin = admin
        self._callers = callers

    async def check(self, source: Topic, record: SubscriptionRecord) -> None:
        """Ensures that a subscription's settings can be heeded. Raises InvalidRequest, and what `ensure` raises."""
        name = record.dead_letter_topic
        if name is not None:
            await self.ensure(source, name, record.creator_uid)
        elif record.max_attempts:
            raise InvalidRequest(
                f"max_attempts is {record.max_attempts}, and dead_letter_topic null: what has failed so often needs a "
                "topic to go to; name one, or set max_attempts to 0",
                field="dead_letter_topic",
                value=None,
            )

    async def ensure_as_creator(self, source: Topic, record: SubscriptionRecord, name: str) -> Topic:
        """As `ensure`, with the rights that the subscription's creator has now. Raises Forbidden."""
        if record.creator is not None:
            creator = self._creator(record.creator, record.creator_uid, name)
            _check(creator, Action.PUBLISH, name)
            if self._catalog.find(name) is None:
                _check(creator, Action.CREATE, name)
        return await self.ensure(source, name, record.creator_uid)

    def _creator(self, principal: str, uid: str | None, name: str) -> Caller:
        """Returns the creator as it is now. Raises Forbidden where it has gone, also where another has its name."""
        found = self._callers.principal(principal, uid)
        if found is None:
            raise Forbidden(
                f"the principal {principal!r}, with whose rights dead letters go out, is disabled, or was deleted; one "
                "that has its name now is another one. A PATCH of dead_letter_topic, also to the same topic, has them "
                "go out with its caller's rights",
                action=str(Action.PUBLISH),
                resource=name,
            )
        return found

    async def ensure(self, source: Topic, name: str, creator: str | None = None) -> Topic:
        """Returns the topic for the dead letters of `source`, which counts to the limits of the principal with the uid
        `creator` where it is created here. Raises InvalidRequest where it has another format or is
        `source` itself, TooManyTopics, TooManySegments, TopicBeingDeleted, Unavailable."""
        if name == source.name:
            raise InvalidRequest(
                f"dead_letter_topic is {name!r}, the topic itself, which would deliver its dead letters again; name "
                "another one",
                field="dead_letter_topic",
                value=name,
            )
        if self._catalog.find(name) is None:
            self._catalog.check_readable(name)
            config = source.record.config
            plain = TopicConfig(format=config.format, schema=config.schema, columns=config.columns)
            await self._admin.create(name, plain, creator)
        found = await self._catalog.known(name)
        if found.layout.format is not source.layout.format or not found.layout.values.equals(source.layout.values):
            raise InvalidRequest(
                f"dead_letter_topic is {name!r}, whose format is {found.layout.format.value} with other columns or "
                f"values than {source.name!r} ({source.layout.format.value}) has; name a topic of the same format and "
                "schema, or one that does not exist",
                field="dead_letter_topic",
                value=name,
            )
        return found


def _check(creator: Caller, action: Action, name: str) -> None:
    if not judge(creator, action, Resource(name)):
        raise Forbidden(
            f"{creator.principal!r}, who created the subscription, has no right to {action} on {name!r}",
            action=str(action),
            resource=name,
        )
