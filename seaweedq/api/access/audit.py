"""Tells the audit of the changes and denials among the requests of clients: who asked, from where, for what, and what
came of it. A request that is neither costs nothing more.

A change is a request that is not a GET, unless it publishes or consumes; and a topic's creation by a publish or an
upload. It is told of whatever comes of it. A denial is an answer of 401, 403 or 429. What another broker relays was
told of there. No query, header or body goes into an event: they may hold links, tokens and messages.
"""

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from seaweedq.access.actions import Action, Resource
from seaweedq.access.caller import NOBODY, Caller
from seaweedq.access.tokens import id_of
from seaweedq.api.access.authentication import CALLER, RULE, text_of
from seaweedq.api.access.rules import OPEN, Rule
from seaweedq.api.problems import status_of
from seaweedq.api.request import Scope, Send
from seaweedq.broker.access import MAX_BYTES
from seaweedq.broker.audit import LOOKED_AT, Audit, Event, shown
from seaweedq.broker.rpc import USUAL
from seaweedq.errors import PeerRefused, SeaweedqError, UnreadableRequest

CREATED = "seaweedq.created"  # the key in a scope of a topic that a publish or an upload has created
_WATCHED = "seaweedq.watched"
_DENIED = frozenset({401, 403, 429})
_NO_RULE = Rule(OPEN), Resource()


@dataclass(slots=True)
class _Watched:
    """A change as far as it is known: its status, 0 before there is one; why it was denied; the token it has made."""

    status: int = 0
    reason: str | None = None
    made: str | None = None


class Audited:
    """Watches the requests of one broker. `is_of_broker` tells which were found to come from another broker,
    `address_of` returns where a request comes from, and `masked` a text without the secrets of tokens."""

    def __init__(
        self,
        audit: Audit,
        is_of_broker: Callable[[Scope], bool],
        address_of: Callable[[Scope], str | None],
        masked: Callable[[str], str],
    ) -> None:
        self._audit = audit
        self._is_of_broker = is_of_broker
        self._address_of = address_of
        self._masked = masked

    def is_change(self, scope: Scope) -> bool:
        """Returns whether a request that the gate has let in is a change, which is to be watched."""
        rule: Rule = scope[RULE][0]
        return rule.is_change and self._audit.is_on and not self._is_of_broker(scope)

    def watch(self, scope: Scope) -> Callable[[Send], Send]:
        """Begins to watch a change. Returns what has its answer seen."""
        watched = scope[_WATCHED] = _Watched()

        def seen(out: Send) -> Send:
            """Returns what sends the answer, and keeps its status."""

            async def send(message: MutableMapping[str, Any]) -> None:
                """Sends a part of the answer."""
                if message["type"] == "http.response.start":
                    watched.status = message["status"]
                await out(message)

            return send

        return seen

    def end(self, scope: Scope) -> None:
        """Tells of what has come of a request: of a change that was watched, or of a topic that was created."""
        watched: _Watched | None = scope.get(_WATCHED)
        if watched is None:
            if CREATED in scope and self._audit.is_on and not self._is_of_broker(scope):
                self._audit.change(self._event(scope, Action.CREATE, status=201))
        elif watched.status in _DENIED:
            self._deny(scope, watched.status, watched.reason or "denied")
        else:
            self._audit.change(self._event(scope, scope[RULE][0].action, status=watched.status, made=watched.made))

    def denied(self, scope: Scope, error: SeaweedqError) -> None:
        """Tells of an error with which a request is answered, where that is a denial."""
        if not self._audit.is_on or (status := status_of(error)) not in _DENIED:
            return
        if watched := scope.get(_WATCHED):
            watched.reason = error.slug  # it is told of at its end
        elif isinstance(error, PeerRefused):
            if error.fields.get("reason") not in USUAL:
                self._deny(scope, status, error.slug)
        elif not self._is_of_broker(scope):
            self._deny(scope, status, error.slug)

    def _deny(self, scope: Scope, status: int, reason: str) -> None:
        caller = _caller(scope)
        if self._audit.has_room(caller.principal is not None, reason, status):
            action = scope.get(RULE, _NO_RULE)[0].action
            self._audit.denial(self._event(scope, action, status=status, reason=reason))

    def _shown(self, text: str) -> str:
        return shown(self._masked(text[: LOOKED_AT + MAX_BYTES]))

    def _event(self, scope: Scope, action: Action | None, **found: Any) -> Event:
        caller, about = _caller(scope), scope.get(RULE, _NO_RULE)[1]
        return Event(
            time_us=self._audit.clock.now_us(),
            kind="denial" if "reason" in found else "change",
            broker=self._audit.broker,
            principal=caller.principal,
            token=caller.token or _claimed(scope),
            address=self._address_of(scope),
            method=scope["method"] if scope["type"] == "http" else "WEBSOCKET",
            path=self._shown(scope["path"]),
            action=None if action is None else str(action),
            topic=None if about.topic is None else self._shown(about.topic),
            subscription=None if about.subscription is None else self._shown(about.subscription),
            **found,
        )


def made(scope: Scope, token: str) -> None:
    """Notes the id of the token that a request has made."""
    watched: _Watched | None = scope.get(_WATCHED)
    if watched:
        watched.made = token


def _caller(scope: Scope) -> Caller:
    found: Caller = scope.get(CALLER, NOBODY)
    return found


def _claimed(scope: Scope) -> str | None:
    """Returns the id of the token that a request shows and that does not count: one that was revoked is known by it."""
    try:
        text = text_of(scope)
    except UnreadableRequest:
        return None
    return None if text is None else id_of(text.decode("latin-1"))
