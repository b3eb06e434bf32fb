"""The path as it was sent, before percent-decoding. Routes are chosen by the decoded path, so what is encoded in a name
must not choose another route: a topic `a%2Fsubscriptions%2Fb` would be a subscription, and `%69nternal` would be what a
proxy keeps out.
"""

from seaweedq.api.asgi.http import Scope
from seaweedq.errors import RouteNotFound

INTERNAL = "/internal"
SHOWN = 200


def check_raw_path(scope: Scope) -> None:
    """Raises RouteNotFound for a path with an encoded slash, and for an encoded path between brokers."""
    raw = scope.get("raw_path") or b""
    if b"%" not in raw:
        return
    path, method = raw.decode("latin-1"), scope.get("method", "")
    if "%2f" in path.lower():
        raise RouteNotFound(
            f"there is no route {method} {path[:SHOWN]}: no name has a slash, not an encoded one either"
        )
    if scope["path"].startswith(INTERNAL):
        raise RouteNotFound(f"there is no route {method} {path[:SHOWN]}; see /docs")
