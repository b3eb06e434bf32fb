"""The one judge of what a caller may do."""

from seaweedq.access.actions import Action, Resource
from seaweedq.access.caller import Caller


def judge(caller: Caller, action: Action, resource: Resource) -> bool:
    """Returns whether a caller may do an action on a resource, whether or not that exists."""
    layers = caller.layers
    if not layers:
        return False
    for layer in layers:  # noqa: SIM110 -- a generator costs more than all the rest, for each request
        if not layer.allow(action, resource):
            return False
    return True
