"""Tells requests of this cluster's brokers from those of clients, by the secret that the brokers show."""

import hmac

from seaweedq.api.asgi.http import Scope, header
from seaweedq.broker.rpc.client import SECRET_HEADER
from seaweedq.errors import Forbidden

_SECRET = SECRET_HEADER.lower().encode()


class PeerSecret:
    """The secret of this cluster's brokers; an empty one matches nothing."""

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()

    def is_shown(self, scope: Scope) -> bool:
        """Returns whether the request comes from a broker of this cluster."""
        shown = header(scope, _SECRET)
        return shown is not None and bool(self._secret) and hmac.compare_digest(shown.encode(), self._secret)

    def is_relayed(self, scope: Scope) -> bool:
        """Returns whether a broker of this cluster relayed the request. Raises Forbidden where a broker of another
        cluster did: its request must not be relayed once more, and so round and round."""
        if self.is_shown(scope):
            return True
        if header(scope, _SECRET) is not None:
            raise Forbidden(
                "only brokers of this cluster may send Seaweedq-Secret, and this is not the cluster's secret"
            )
        return False
