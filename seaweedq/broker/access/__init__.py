"""Principals and tokens of the cluster: each broker's view, and changes."""

from seaweedq.broker.access.callers import MAX_BYTES as MAX_BYTES
from seaweedq.broker.access.callers import Callers as Callers
from seaweedq.broker.access.principals import Principals as Principals
from seaweedq.broker.access.principals import TokenSpec as TokenSpec
from seaweedq.broker.access.view import Touched as Touched
