"""Records changes and denials among the requests of clients: their caller, address, action and outcome. A request that
is neither costs nothing more.

A change is a request that is not a GET, unless it publishes or consumes; and a topic's creation by a publish or an
upload. It is recorded whatever its outcome. A denial is an answer of 401, 403 or 429. A relayed request was recorded
by the first broker. No query, header or body goes into an event: they may hold links, tokens and messages.
"""

from collections.abc import Callable
from typing import Any

from seaweedq.access.rights import Action
from seaweedq.access.tokens import id_of
from seaweedq.api.access.authentication import text_of
from seaweedq.api.problems import status_of
from seaweedq.api.request import Request
from seaweedq.broker.access import MAX_BYTES
from seaweedq.broker.audit import LOOKED_AT, Audit, Event, shown
from seaweedq.broker.rpc import USUAL
from seaweedq.errors import PeerRefused, SeaweedqError, Unauthenticated, UnreadableRequest

_DENIED = frozenset({401, 403, 429})


class RequestAudit:
    """Watches the requests of one broker. `address_of` returns the address of a request's client, and `masked` a text
    without the secrets of tokens."""

    def __init__(
        self,
        audit: Audit,
        address_of: Callable[[Request], str | None],
        masked: Callable[[str], str],
    ) -> None:
        self._audit = audit
        self._address_of = address_of
        self._masked = masked

    def begin(self, request: Request) -> bool:
        """Begins to watch a change, and returns True; False if it is not to be recorded."""
        request.is_watched = self._audit.is_on and not request.sender
        return request.is_watched

    def end(self, request: Request, status: int) -> None:
        """Records a change that was watched, with the status of its answer, 0 for none."""
        if status in _DENIED:
            self._deny(request, status, request.denied_for or "denied")
        else:
            self._audit.add_change(self._event(request, request.route.action, status=status, made=request.issued))

    def created(self, request: Request) -> None:
        """Records a topic that a publish or an upload has created."""
        if self._audit.is_on and not request.sender:
            self._audit.add_change(self._event(request, Action.CREATE, status=201))

    def denied(self, request: Request, error: SeaweedqError) -> None:
        """Records an error with which a request is answered, if that is a denial."""
        if not self._audit.is_on or (status := status_of(error)) not in _DENIED:
            return
        if request.is_watched:
            request.denied_for = _reason_of(error)  # it is recorded at its end
        elif isinstance(error, PeerRefused):
            if error.fields.get("reason") not in USUAL:
                self._deny(request, status, error.slug)
        elif not request.sender:
            self._deny(request, status, _reason_of(error), error.token if isinstance(error, Unauthenticated) else None)

    def _deny(self, request: Request, status: int, reason: str, token: str | None = None) -> None:
        caller = request.caller
        if self._audit.has_room(caller.principal is not None, reason, status):
            self._audit.add_denial(self._event(request, request.route.action, token, status=status, reason=reason))

    def _shown(self, text: str) -> str:
        return shown(self._masked(text[: LOOKED_AT + MAX_BYTES]))

    def _event(self, request: Request, action: Action | None, token: str | None = None, **found: Any) -> Event:
        caller, about = request.caller, request.resource
        return Event(
            time_us=self._audit.clock.now_us(),
            kind="denial" if "reason" in found else "change",
            broker=self._audit.broker,
            principal=caller.principal,
            token=token or caller.token or _claimed(request),
            identity=caller.identity,
            address=self._address_of(request),
            method=request.method,
            path=self._shown(request.path),
            action=None if action is None else str(action),
            topic=None if about.topic is None else self._shown(about.topic),
            subscription=None if about.subscription is None else self._shown(about.subscription),
            **found,
        )


def _reason_of(error: SeaweedqError) -> str:
    return error.reason if isinstance(error, Unauthenticated) else error.slug


def _claimed(request: Request) -> str | None:
    """Returns the id of the token that a request shows and that does not count: one that was revoked is known by it."""
    try:
        text = text_of(request)
    except UnreadableRequest:
        return None
    return None if text is None else id_of(text.decode("latin-1"))
